/* Control: a header that leans on what others include, and so does not compile alone. */
uint64_t nmc_control(void);
