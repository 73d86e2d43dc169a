"""Lines of fields, such as Criteo's, to files of records: in parallel, and by columns only.

The way of a line: `source` reads blocks of lines, `parse` makes columns of them, `split` says which
rows are for validation, `files` encodes and writes, and `convert` has them work in parallel.
"""
