/* Moves the wall clock of a process by the seconds in the file that FOREBAY_TEST_CLOCK names (one int64). Loaded by LD_PRELOAD.
   The monotonic clock stays. Absolute deadlines of the wall clock are moved back, as the kernel's clock has not moved. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

/* a deadline after this many seconds is one of the wall clock: no machine has been up for 30 years */
#define WALL 1000000000

static volatile int64_t *moved;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FOREBAY_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED)
        moved = page;
}

static int64_t ahead(void) { return moved ? *moved : 0; }

int clock_gettime(clockid_t id, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, at);
    if (!code && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        at->tv_sec += ahead();
    return code;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int code = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return code;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

static const struct timespec *kernels(const struct timespec *deadline, struct timespec *copy) {
    if (deadline->tv_sec < WALL)
        return deadline;
    *copy = *deadline;
    copy->tv_sec -= ahead();
    return copy;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict deadline) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec copy;
    if (!real)
        real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    return real(cond, mutex, kernels(deadline, &copy));
}

int cnd_timedwait(cnd_t *restrict cond, mtx_t *restrict mutex, const struct timespec *restrict deadline) {
    static int (*real)(cnd_t *, mtx_t *, const struct timespec *);
    struct timespec copy;
    if (!real)
        real = dlsym(RTLD_NEXT, "cnd_timedwait");
    return real(cond, mutex, kernels(deadline, &copy));
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict deadline) {
    static int (*real)(sem_t *, const struct timespec *);
    struct timespec copy;
    if (!real)
        real = dlsym(RTLD_NEXT, "sem_timedwait");
    return real(sem, kernels(deadline, &copy));
}
