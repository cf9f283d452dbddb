/* Stands between a program and the kernel: a statvfs below $STALLED waits as long as there is a file $STALLED.stalls, as it does for ever
   on a mount whose server is gone. Built by the test run, loaded by LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

static void stall(const char *path)
{
    const char *below = getenv("STALLED");
    char switched_on[4096];

    if (!below || strncmp(path, below, strlen(below)) != 0)
        return;
    snprintf(switched_on, sizeof switched_on, "%s.stalls", below);
    while (access(switched_on, F_OK) == 0)
        usleep(20000);
}

int statvfs(const char *path, struct statvfs *found)
{
    int (*next)(const char *, struct statvfs *) = dlsym(RTLD_NEXT, "statvfs");

    stall(path);
    return next(path, found);
}

int statvfs64(const char *path, struct statvfs64 *found)
{
    int (*next)(const char *, struct statvfs64 *) = dlsym(RTLD_NEXT, "statvfs64");

    stall(path);
    return next(path, found);
}
