"""`resharpen report`: runs as one HTML file to look at, offline.

Python gathers what analysis has computed and packs it; the scripts of `page/` draw it and link what is drawn.

Charts are plotly's. In a trial with two linked panels of 64,000 dots, in headless Chromium on two busy cores without a
graphics card, plotly's `scattergl` took 0.5 to 0.8 s to show a selection in both; Bokeh took 4 s on a canvas and 11 s
with WebGL. plotly's script is the larger (4.8 MB against 1.5), but compressed it is 1.5 MB, and the browser unpacks it.
Parallel coordinates are lines and boxes of a plain plot: plotly's own `parcoords` took 26 s for 4,000 lines there,
cannot mark one model among the others, and prints as a bitmap.
"""
