/*
 * Measures the namespaces and mounts of `bwrap --unshare-all --ro-bind / / --tmpfs /tmp --proc /proc --dev /dev` alone,
 * around /bin/true: the same system calls in a row, without options, checks, messages or other protections. Nothing
 * that makes these calls can be faster. Only scripts/bench-peers uses it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const DEVICES[] = {"full", "null", "random", "tty", "urandom", "zero"};

static void must(long answer, const char *what)
{
    if (answer < 0) {
        perror(what);
        _exit(1);
    }
}

static void write_to(const char *path, const char *text)
{
    int file = open(path, O_WRONLY | O_CLOEXEC);
    must(file, path);
    must(write(file, text, strlen(text)), path);
    close(file);
}

static int status_of(pid_t child)
{
    int status = 0;
    must(waitpid(child, &status, 0), "waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void map_ids(uid_t uid, gid_t gid)
{
    char line[64];
    write_to("/proc/self/setgroups", "deny");
    snprintf(line, sizeof line, "%u %u 1", uid, uid);
    write_to("/proc/self/uid_map", line);
    snprintf(line, sizeof line, "%u %u 1", gid, gid);
    write_to("/proc/self/gid_map", line);
}

static void make_dev(void)
{
    must(mount("tmpfs", "dev", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755"), "/dev");
    for (size_t at = 0; at < sizeof DEVICES / sizeof *DEVICES; at++) {
        char from[64], to[64];
        snprintf(from, sizeof from, "/dev/%s", DEVICES[at]);
        snprintf(to, sizeof to, "dev/%s", DEVICES[at]);
        must(mknod(to, S_IFREG | 0666, 0), to);
        must(mount(from, to, NULL, MS_BIND, NULL), to);
    }
    must(mkdir("dev/pts", 0755), "dev/pts");
    must(mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666"), "dev/pts");
}

/* The host's root read-only, with private directories, and nothing else. */
static void make_root(void)
{
    struct mount_attr read_only = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID};
    must(mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL), "/");
    int tree = syscall(SYS_open_tree, AT_FDCWD, "/", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    must(tree, "open_tree");
    must(syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &read_only, sizeof read_only), "mount_setattr");
    must(syscall(SYS_move_mount, tree, "", AT_FDCWD, "/tmp", MOVE_MOUNT_F_EMPTY_PATH), "move_mount");
    must(chdir("/tmp"), "chdir");
    must(mount("tmpfs", "tmp", "tmpfs", MS_NOSUID | MS_NODEV, NULL), "/tmp");
    must(mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "/proc");
    make_dev();
    must(syscall(SYS_pivot_root, ".", "."), "pivot_root");
    must(umount2(".", MNT_DETACH), "umount2");
    must(chdir("/"), "chdir");
}

int main(void)
{
    const uid_t uid = getuid();
    const gid_t gid = getgid();
    struct clone_args wanted = {
        .flags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP,
        .exit_signal = SIGCHLD,
    };
    pid_t init = syscall(SYS_clone3, &wanted, sizeof wanted);
    must(init, "clone3");
    if (init > 0)
        return status_of(init);
    map_ids(uid, gid);
    make_root();
    pid_t command = vfork();
    if (command == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    must(command, "vfork");
    return status_of(command);
}
