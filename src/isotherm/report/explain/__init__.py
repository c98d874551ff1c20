"""What the lab found, for people: a terminal, one illustrated page, a folder of figures and records.

Everything here reads the records of `isotherm.record.claim` and needs no torch. A `Book` holds them in chapters;
`axes` works out ranges and ticks once for every drawing; `svg` and `heat` draw for the page and for files, `plot` for a
terminal, `png` with matplotlib where it is installed:

    terminal.show(book, console, language)        page.to_html(book, language)        folder.write(book, path, language)
"""
