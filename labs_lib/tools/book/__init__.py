"""The series as static HTML: the committed notebooks with their committed outputs, read without Jupyter.

`pages` says what there is, `rendering` turns one page into HTML (`formulas` its TeX), `headings` and `links` work on
that HTML, `building` writes the folder, and `checks` reads the folder again and names what is wrong with it.
"""
