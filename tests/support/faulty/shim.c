/* Faults of the disk in a process, and a log of what it writes: a library for LD_PRELOAD (tests/support/faulty/shim.py).
 *
 * FOREBAY_SHIM names the control file, which the test changes while the process runs (struct control). FOREBAY_SHIM_ROOT names
 * the folder whose files the faults and the log concern. FOREBAY_SHIM_LOG names the log; all processes of a host append to one.
 * The environment is read at the first call after it has the variable, so a fork may set it.
 *
 * The log has the order of a host: an operation is in it after it was carried out and before its caller continues. A sync is in it
 * twice, when it begins and when it has succeeded, because it covers only what was written before it began. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, READ = 4, OPEN = 8, NAME = 16 };
#define FAULTS 8
#define SENT_BYTES_MAX (1 << 20)
#define LOG_DESCRIPTOR 700

struct fault {
    int32_t operations; /* bits of the above; 0: no fault */
    int32_t error;      /* 0: only the delay */
    int32_t remaining;  /* how often it still happens; -1: always */
    int32_t delay_ms;
    int64_t hits;
    char part[104]; /* of the path */
};

struct control {
    struct fault faults[FAULTS];
};

struct record {
    char kind;
    char unused[3];
    uint16_t path_bytes, other_bytes;
    uint32_t pid, nothing;
    uint64_t inode, offset, bytes;
};

static struct control *control;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once_of_process = PTHREAD_ONCE_INIT;
static pid_t opened_by;
static char root[PATH_MAX];
static size_t root_bytes;
static int log_descriptor = -1;

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static void fail(const char *what) {
    dprintf(2, "shim: %s: %s\n", what, strerror(errno));
    _exit(70);
}

static void begin(void) {
    const char *path = getenv("FOREBAY_SHIM"), *folder = getenv("FOREBAY_SHIM_ROOT"), *log = getenv("FOREBAY_SHIM_LOG");
    opened_by = getpid();
    if (!path || !folder) return;
    int descriptor = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (descriptor < 0) fail(path);
    struct control *mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (mapped == MAP_FAILED) fail("mmap");
    syscall(SYS_close, descriptor);
    if (!realpath(folder, root)) fail(folder);
    root_bytes = strlen(root);
    if (log) {
        descriptor = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CLOEXEC, 0);
        if (descriptor < 0) fail(log);
        log_descriptor = fcntl(descriptor, F_DUPFD_CLOEXEC, LOG_DESCRIPTOR);
        if (log_descriptor < 0) fail("dup");
        syscall(SYS_close, descriptor);
    }
    control = mapped;
}

/* whether the process is one that the test prepared */
static int active(void) {
    if (control) return 1;
    static int tried;
    if (!tried && getenv("FOREBAY_SHIM")) {
        tried = 1;
        pthread_once(&once_of_process, begin);
    }
    return control != NULL;
}

static int below_root(const char *path) {
    return strncmp(path, root, root_bytes) == 0 && (path[root_bytes] == '/' || !path[root_bytes]);
}

/* the path of a descriptor of a file or folder below the root; NULL for others */
static const char *path_of(int descriptor, char *buffer, struct stat *status) {
    char link[64];
    if (!active() || fstat(descriptor, status) || !(S_ISREG(status->st_mode) || S_ISDIR(status->st_mode))) return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, buffer, PATH_MAX - 1);
    if (length < 0) return NULL;
    buffer[length] = 0;
    return below_root(buffer) ? buffer : NULL;
}

/* the absolute path of what a call names, without its last link being followed; NULL if it is not below the root */
static const char *absolute(int folder, const char *path, char *buffer) {
    char place[PATH_MAX];
    if (!active()) return NULL;
    if (path[0] == '/') {
        snprintf(buffer, PATH_MAX, "%s", path);
    } else {
        char link[64];
        if (folder == AT_FDCWD) {
            if (!getcwd(place, sizeof place)) return NULL;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
            ssize_t length = readlink(link, place, sizeof place - 1);
            if (length < 0) return NULL;
            place[length] = 0;
        }
        if (snprintf(buffer, PATH_MAX, "%s/%s", place, path) >= PATH_MAX) return NULL;
    }
    return below_root(buffer) ? buffer : NULL;
}

/* wait and fail as the test has ordered; returns -1 with errno set if the call is to fail */
static int faulty(int operation, const char *path) {
    if (!path) return 0;
    for (int i = 0; i < FAULTS; i++) {
        struct fault *fault = &control->faults[i];
        if (!(__atomic_load_n(&fault->operations, __ATOMIC_ACQUIRE) & operation) || !strstr(path, fault->part)) continue;
        if (fault->remaining >= 0 && __atomic_fetch_sub(&fault->remaining, 1, __ATOMIC_ACQ_REL) <= 0) {
            __atomic_store_n(&fault->remaining, 0, __ATOMIC_RELEASE);
            continue;
        }
        __atomic_fetch_add(&fault->hits, 1, __ATOMIC_ACQ_REL);
        int32_t error = fault->error, delay_ms = fault->delay_ms; /* the place may have another fault after the delay */
        struct timespec time = {delay_ms / 1000, delay_ms % 1000 * 1000000L};
        if (delay_ms) nanosleep(&time, NULL);
        if (error) {
            errno = error;
            return -1;
        }
    }
    return 0;
}

/* ---- the log ------------------------------------------------------------------------------------------------------ */

static void hold(void) {
    pthread_mutex_lock(&lock);
    if (log_descriptor >= 0)
        while (flock(log_descriptor, LOCK_EX))
            if (errno != EINTR) fail("flock");
}

static void release(void) {
    int error = errno;
    if (log_descriptor >= 0) flock(log_descriptor, LOCK_UN);
    pthread_mutex_unlock(&lock);
    errno = error;
}

static void put(char kind, const char *path, const char *other, uint64_t inode, uint64_t offset, const struct iovec *data, int parts,
                size_t bytes) {
    if (log_descriptor < 0) return;
    int error = errno;
    struct record head = {.kind = kind, .pid = getpid(), .inode = inode, .offset = offset, .bytes = bytes};
    char *buffer = malloc(sizeof head + 2 * PATH_MAX + bytes), *end = buffer + sizeof head;
    if (!buffer) fail("malloc");
    if (path) head.path_bytes = strlen(path);
    if (other) head.other_bytes = strlen(other);
    memcpy(buffer, &head, sizeof head);
    if (path) end = mempcpy(end, path, head.path_bytes);
    if (other) end = mempcpy(end, other, head.other_bytes);
    for (int i = 0; i < parts && bytes; i++) {
        size_t length = data[i].iov_len < bytes ? data[i].iov_len : bytes;
        end = mempcpy(end, data[i].iov_base, length);
        bytes -= length;
    }
    for (char *rest = buffer; rest < end;) {
        ssize_t written = syscall(SYS_write, log_descriptor, rest, end - rest);
        if (written < 0 && errno != EINTR) fail("log");
        if (written > 0) rest += written;
    }
    free(buffer);
    errno = error;
}

/* ---- data ----------------------------------------------------------------------------------------------------------- */

/* `offset` < 0: the file's own position */
static ssize_t written(int descriptor, const struct iovec *data, int parts, off_t offset) {
    char buffer[PATH_MAX];
    struct stat status;
    ssize_t result;
    const char *path = path_of(descriptor, buffer, &status);
    if (faulty(WRITE, path)) return -1;
    if (path) hold();
    result = offset < 0 ? syscall(SYS_writev, descriptor, data, parts) : syscall(SYS_pwritev, descriptor, data, parts, offset, 0);
    if (path) {
        if (result > 0) {
            if (offset < 0) offset = lseek(descriptor, 0, SEEK_CUR) - result;
            put('W', path, NULL, status.st_ino, offset, data, parts, result);
        }
        release();
    }
    return result;
}

/* what a service sends to others: reports of blocks, answers that accept them, and commits of offsets */
static void sent(int descriptor, const struct iovec *data, int parts) {
    struct stat status;
    if (!active() || log_descriptor < 0 || fstat(descriptor, &status) || !S_ISSOCK(status.st_mode)) return;
    size_t bytes = 0;
    int wanted = 0;
    for (int i = 0; i < parts; i++) {
        bytes += data[i].iov_len;
        wanted |= memmem(data[i].iov_base, data[i].iov_len, "forebay:", 8) != NULL
            || memmem(data[i].iov_base, data[i].iov_len, "\"accepted\":true", 15) != NULL
            || memmem(data[i].iov_base, data[i].iov_len, "\"blocks\":[{", 11) != NULL;
    }
    if (!wanted || bytes > SENT_BYTES_MAX) return;
    hold();
    put('N', NULL, NULL, 0, 0, data, parts, bytes);
    release();
}

ssize_t write(int descriptor, const void *data, size_t bytes) {
    struct iovec one = {(void *)data, bytes};
    if (!active()) return syscall(SYS_write, descriptor, data, bytes);
    sent(descriptor, &one, 1);
    return written(descriptor, &one, 1, -1);
}

ssize_t writev(int descriptor, const struct iovec *data, int parts) {
    if (!active()) return syscall(SYS_writev, descriptor, data, parts);
    sent(descriptor, data, parts);
    return written(descriptor, data, parts, -1);
}

ssize_t pwrite(int descriptor, const void *data, size_t bytes, off_t offset) {
    struct iovec one = {(void *)data, bytes};
    if (!active()) return syscall(SYS_pwrite64, descriptor, data, bytes, offset);
    return written(descriptor, &one, 1, offset);
}

ssize_t pwrite64(int descriptor, const void *data, size_t bytes, off64_t offset) { return pwrite(descriptor, data, bytes, offset); }

ssize_t send(int descriptor, const void *data, size_t bytes, int flags) {
    REAL(send);
    struct iovec one = {(void *)data, bytes};
    sent(descriptor, &one, 1);
    return real(descriptor, data, bytes, flags);
}

ssize_t sendmsg(int descriptor, const struct msghdr *message, int flags) {
    REAL(sendmsg);
    sent(descriptor, message->msg_iov, message->msg_iovlen);
    return real(descriptor, message, flags);
}

ssize_t read(int descriptor, void *data, size_t bytes) {
    char buffer[PATH_MAX];
    struct stat status;
    if (active() && faulty(READ, path_of(descriptor, buffer, &status))) return -1;
    return syscall(SYS_read, descriptor, data, bytes);
}

ssize_t pread(int descriptor, void *data, size_t bytes, off_t offset) {
    char buffer[PATH_MAX];
    struct stat status;
    if (active() && faulty(READ, path_of(descriptor, buffer, &status))) return -1;
    return syscall(SYS_pread64, descriptor, data, bytes, offset);
}

ssize_t pread64(int descriptor, void *data, size_t bytes, off64_t offset) { return pread(descriptor, data, bytes, offset); }

static int synced(int descriptor, long number) {
    char buffer[PATH_MAX];
    struct stat status;
    const char *path = path_of(descriptor, buffer, &status);
    static uint64_t syncs;
    uint64_t sync = __atomic_add_fetch(&syncs, 1, __ATOMIC_ACQ_REL);
    if (faulty(SYNC, path)) return -1;
    if (path) {
        hold();
        put('S', path, NULL, status.st_ino, sync, NULL, 0, 0);
        release();
    }
    int result = syscall(number, descriptor);
    if (path && !result) {
        hold();
        put('E', path, NULL, status.st_ino, sync, NULL, 0, 0);
        release();
    }
    return result;
}

int fsync(int descriptor) { return synced(descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return synced(descriptor, SYS_fdatasync); }

int ftruncate(int descriptor, off_t length) {
    char buffer[PATH_MAX];
    struct stat status;
    const char *path = path_of(descriptor, buffer, &status);
    if (faulty(WRITE, path)) return -1;
    if (path) hold();
    int result = syscall(SYS_ftruncate, descriptor, length);
    if (path) {
        if (!result) put('T', path, NULL, status.st_ino, length, NULL, 0, 0);
        release();
    }
    return result;
}

int ftruncate64(int descriptor, off64_t length) { return ftruncate(descriptor, length); }

/* ---- names ---------------------------------------------------------------------------------------------------------- */

static int opened(int folder, const char *name, int flags, mode_t mode) {
    char buffer[PATH_MAX];
    struct stat before, after;
    const char *path = absolute(folder, name, buffer);
    if (!path) return syscall(SYS_openat, folder, name, flags, mode);
    if (faulty(OPEN, path)) return -1;
    if (!(flags & (O_CREAT | O_TRUNC))) return syscall(SYS_openat, folder, name, flags, mode);
    hold();
    int existed = !fstatat(AT_FDCWD, path, &before, AT_SYMLINK_NOFOLLOW);
    int descriptor = syscall(SYS_openat, folder, name, flags, mode);
    if (descriptor >= 0 && !fstat(descriptor, &after)) {
        if (!existed) put('C', path, NULL, after.st_ino, 0, NULL, 0, 0);
        else if (flags & O_TRUNC) put('T', path, NULL, after.st_ino, 0, NULL, 0, 0);
    }
    release();
    return descriptor;
}

static mode_t mode_of(int flags, va_list rest) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; }

#define OPENER(name, at) \
    { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = mode_of(flags, rest); \
        va_end(rest); \
        return opened(at, path, flags, mode); \
    }
int open(const char *path, int flags, ...) OPENER(open, AT_FDCWD)
int open64(const char *path, int flags, ...) OPENER(open64, AT_FDCWD)
int openat(int folder, const char *path, int flags, ...) OPENER(openat, folder)
int openat64(int folder, const char *path, int flags, ...) OPENER(openat64, folder)

/* `kind`: what to log if the call succeeds */
static int named(char kind, int folder, const char *first, int other_folder, const char *second, long result_of, long a, long b, long c,
                 long d, long e) {
    char buffer[PATH_MAX], other_buffer[PATH_MAX];
    struct stat status = {0};
    const char *path = absolute(folder, first, buffer), *other = second ? absolute(other_folder, second, other_buffer) : NULL;
    if (faulty(NAME, path) || faulty(NAME, other)) return -1;
    if (path) hold();
    if (path && kind != 'M') fstatat(AT_FDCWD, path, &status, AT_SYMLINK_NOFOLLOW);
    int result = syscall(result_of, a, b, c, d, e);
    if (path) {
        if (!result) put(kind, path, other, status.st_ino, 0, NULL, 0, 0);
        release();
    }
    return result;
}

int renameat(int folder, const char *from, int other, const char *to) {
    return named('R', folder, from, other, to, SYS_renameat2, folder, (long)from, other, (long)to, 0);
}
int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }
int linkat(int folder, const char *from, int other, const char *to, int flags) {
    return named('L', folder, from, other, to, SYS_linkat, folder, (long)from, other, (long)to, flags);
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
int unlinkat(int folder, const char *path, int flags) {
    return named(flags & AT_REMOVEDIR ? 'D' : 'U', folder, path, 0, NULL, SYS_unlinkat, folder, (long)path, flags, 0, 0);
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int mkdirat(int folder, const char *path, mode_t mode) {
    return named('M', folder, path, 0, NULL, SYS_mkdirat, folder, (long)path, mode, 0, 0);
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
