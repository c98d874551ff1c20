"""The one place that draws: a `Figure` or `Heatmap` becomes SVG, a picture in a terminal, or PNG.

`palette` has the colours, `axes` works out ranges and ticks, `series` says how each line looks and what the legend holds.
The back ends share all of that:

    svg.draw(picture, language)                    a file of its own; without a language, a part of a page in both
    svg.sheet(figures, title, language)            several figures side by side
    terminal.draw(picture, language, width)        braille dots, bars and shades
    png.write(pictures, path, language, title)     where matplotlib is installed
"""
