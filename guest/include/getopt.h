/* Options of programs. */

#ifndef GETOPT_H
#define GETOPT_H

extern char *optarg;
extern int optind, opterr, optopt;

int getopt(int count, char *const arguments[], const char *options);

#endif
