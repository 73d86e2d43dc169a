"""Lines of fields, such as Criteo's, to files of records: in parallel, and by columns only.

The way of a line: `source` reads blocks of lines, `deal` makes messages of them in Rust, or columns
by `parse`, and asks `split` which rows are for validation; `files` encodes, compresses and writes,
and `convert` has them work in parallel.
"""
