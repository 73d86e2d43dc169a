"""Turns lines of fields, such as Criteo's, into files of records: in parallel, by columns only.

`source` reads blocks of lines. `deal` makes messages of them in Rust, or columns by `parse`, and
asks `split` which rows are for validation. `files` encodes, compresses and writes, and `convert`
runs all of it in parallel.
"""
