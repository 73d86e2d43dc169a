"""Records of a source that cannot be cut into ranges: read once, in order, into files of the job.

A source is a command that prints records, or a reader of the user's that knows where it is. One
process reads it. Whoever trains reads the files, as those of any other data.
"""
