/* Jobs: processes in the background and stopped ones. */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "sh.h"

#define JOBS 32
#define TEXT 32

static struct job {
    pid_t pid;                 /* 0: the entry is free */
    int stopped;
    char text[TEXT];
} jobs[JOBS];

void give_terminal(pid_t group)
{
    /* The shell may be in the background here, whose attempt must not stop it. */
    if (is_interactive)
        tcsetpgrp(0, group);
}

void add_job(pid_t pid, const char *text, int stopped)
{
    for (int i = 0; i < JOBS; i++) {
        if (jobs[i].pid)
            continue;
        jobs[i].pid = pid;
        jobs[i].stopped = stopped;
        strncpy(jobs[i].text, text, TEXT - 1);
        if (is_interactive)
            fprintf(stderr, "[%d] %s%d\n", i + 1, stopped ? "stopped " : "", (int)pid);
        return;
    }
}

static struct job *job_of(pid_t pid)
{
    for (int i = 0; i < JOBS; i++)
        if (jobs[i].pid == pid)
            return &jobs[i];
    return NULL;
}

static int code_of(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Waits for a process in the foreground. */
int wait_for(pid_t pid, const char *text)
{
    int status = 0;
    for (;;) {
        pid_t ended = waitpid(pid, &status, is_interactive ? WUNTRACED : 0);
        if (ended == pid)
            break;
        if (ended < 0 && errno != EINTR)
            return 127;
    }
    give_terminal(getpid());
    if (WIFSTOPPED(status)) {
        add_job(pid, text ? text : "", 1);
        return 128 + WSTOPSIG(status);
    }
    if (WIFSIGNALED(status) && WTERMSIG(status) != SIGINT && WTERMSIG(status) != SIGPIPE)
        fprintf(stderr, "%s\n", strsignal(WTERMSIG(status)));
    else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGINT && is_interactive)
        fputc('\n', stderr);
    return code_of(status);
}

void list_jobs(void)
{
    for (int i = 0; i < JOBS; i++) {
        int status;
        struct job *job = &jobs[i];
        if (!job->pid)
            continue;
        pid_t ended = waitpid(job->pid, &status, WNOHANG);
        int done = ended == job->pid || (ended < 0 && errno == ECHILD);
        const char *state = done ? "done" : job->stopped ? "stopped" : "running";
        printf("[%d] %d %s %s\n", i + 1, (int)job->pid, state, job->text);
        if (done)
            job->pid = 0;
    }
}

/* The last one if the number is 0. */
int continue_job(int number, int foreground)
{
    struct job *job = NULL;
    for (int i = 0; i < JOBS; i++)
        if (jobs[i].pid && (number == 0 || number == i + 1))
            job = &jobs[i];
    if (!job) {
        complain(foreground ? "fg" : "bg", "no such job");
        return 1;
    }
    pid_t pid = job->pid;
    char text[TEXT];
    memcpy(text, job->text, TEXT);
    if (foreground) {
        job->pid = 0;
        give_terminal(pid);
    }
    job->stopped = 0;
    kill(-pid, SIGCONT);
    return foreground ? wait_for(pid, text) : 0;
}

/* The builtin: all jobs, or the processes named. */
int wait_jobs(int argc, char **argv)
{
    int result = 0;
    if (argc == 1) {
        int status;
        while (wait(&status) > 0 || errno == EINTR)
            ;
        memset(jobs, 0, sizeof jobs);
        return 0;
    }
    for (int i = 1; i < argc; i++) {
        int status;
        pid_t pid = atoi(argv[i]), ended;
        while ((ended = waitpid(pid, &status, 0)) < 0 && errno == EINTR)
            ;
        result = ended < 0 ? 127 : code_of(status);
        if (job_of(pid))
            job_of(pid)->pid = 0;
    }
    return result;
}
