//! What lies on disk, byte by byte: the directory's head, records, the ends of buckets, the journal.
