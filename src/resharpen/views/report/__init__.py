"""`resharpen report`: runs as one HTML file to look at, offline.

Python gathers what analysis has computed and packs it; the scripts of `page/` draw it and link what is drawn.

Charts are plotly's. In a trial with 64,000 dots, drawn and then selected together, in headless Chromium on two busy cores
without a graphics card, plotly's `scattergl` took 1.8 s to draw and 0.6 to 1.1 s to select; Bokeh 3.2 and 3.9 s on a
canvas, 9 and 15 s with WebGL. plotly's script is the larger (4.8 MB against 1.5), but compressed it is 1.5 MB, and the
browser unpacks it. Parallel coordinates are lines and box selections of a plain plot: plotly's own `parcoords` took 20 s
for 4,000 lines there, cannot mark one model among the others, and prints as a bitmap.
"""
