//! Directories and files as the tier uses them: real ones, and simulated ones that fail and forget as a disk may.
