//! The RecordIO file format and its index.
