"""Turns lines of fields, such as Criteo's, into files of records: in parallel, by columns.

`source` reads blocks of lines, and `parse` makes columns of them. `split` says which rows are for
validation. `files` encodes, compresses and writes, and `convert` runs all of it in parallel.
"""
