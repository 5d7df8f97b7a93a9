"""`resharpen report`: runs as one HTML file that works offline.

Python gathers and packs what analysis has computed; the scripts in `page/` draw it with plotly. In headless Chromium,
with two linked panels of 64,000 dots, plotly's `scattergl` showed a selection in 0.5 to 0.8 s; Bokeh took 4 to 11 s.
Parallel coordinates are lines and boxes of a plain plot, because plotly's `parcoords` took 26 s for 4,000 lines, cannot
highlight one model, and prints as a bitmap.
"""
