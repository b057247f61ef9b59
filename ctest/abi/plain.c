/* Control: a library with another soname, without NODELETE, and with a symbol that has no prefix. */
int nmc_version(void);
int without_prefix(void);
int nmc_version(void) { return 0; }
int without_prefix(void) { return 0; }
