"""What the lab found, for people: a terminal, one illustrated page, a folder of figures and records.

Everything here reads the records of `isotherm.record.claim` and needs no torch. A `Book` holds them in chapters:

    terminal.show(book, console, language)        page.to_html(book, language)        folder.write(book, path, language)
"""
