# What a waiting Python runs: it imports modules, waits for a command, and becomes that command.
#
# Kennel starts it as `python -c STUB …`, and sends this file on the socket that is standard input; output goes nowhere. Messages
# are bytes, with NUL between their parts. The program runs where the interpreter's own C code runs a program: below it is no frame
# of Python. So this file ends with an exception, and `sys.excepthook` is a chain of callables of C that runs the program.
import sys

BEFORE, CACHED = set(sys.modules), set(sys.path_importer_cache)
import _socket
import atexit
import ctypes
import fcntl
import gc
import io
import itertools
import mmap
import os
import resource
import time
from _functools import partial

# The program imports them itself if it needs them, as in a plain start.
for name in set(sys.modules) - BEFORE:
    del sys.modules[name]
for name in set(sys.path_importer_cache) - CACHED:
    del sys.path_importer_cache[name]

API = ctypes.pythonapi
LIBC = ctypes.CDLL(None, use_errno=True)
PYCF_IGNORE_COOKIE = 0x0800
PR_SET_NAME, PR_SET_MM, PR_SET_MM_MAP = 15, 35, 14
# Above the descriptors that modules open.
LINK = 900
# No message of Kennel's is longer; a command comes in a file.
LONGEST = 1 << 16
# Then nothing comes before the libraries on `sys.path`.
IS_PATH_SAFE = getattr(sys.flags, "safe_path", False)
# Those that were tried: what is done here to `sys.flags` and streams is what their C code does.
KNOWN = ((3, 9), (3, 13))


class Refused(Exception):
    """The command is to be executed, for this reason."""


# Before there is a command.


def take_link():
    """Moves the socket away from standard input, which modules may read."""
    link = None
    for least in (LINK, 3):
        try:
            link = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, least)
            break
        except OSError:
            pass
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return _socket.socket(fileno=link)


def import_modules(modules):
    """Imports them as a program would. Kennel looks at what they print: it would be missing later."""
    for module in modules:
        try:
            __import__(module)
        except BaseException as error:
            kind = type(error).__name__
            raise Refused("import %s: %s: %s" % (module, kind, error)) from None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass
    with open("/proc/self/task/%d/children" % os.getpid()) as children:
        if children.read().strip():
            raise Refused("the import of %s starts processes" % ", ".join(modules))


def stamp(path):
    """What changes when somebody replaces a file, or adds one to a directory."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def stamps():
    """Of all that decided what was imported. A file of a directory that nobody here can write to is not looked at: whoever
    replaces it changes the directory."""
    paths = {sys.executable, os.path.join(os.path.dirname(os.path.dirname(sys.executable)), "pyvenv.cfg")}
    paths.update(path for path in sys.path if path)
    writable = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str):
            continue
        directory = os.path.dirname(file)
        if directory not in writable:
            writable[directory] = os.access(directory, os.W_OK)
            paths.add(directory)
        if writable[directory]:
            paths.add(file)
    return {path: stamp(path) for path in paths}


def places():
    """The directory of each module that was imported ahead."""
    found = {}
    for name in set(sys.modules) - BEFORE:
        file = getattr(sys.modules[name], "__file__", None)
        if "." in name or not isinstance(file, str):
            continue
        directory, file = os.path.split(file)
        if file.startswith("__init__."):
            directory = os.path.dirname(directory)
        found[name] = os.path.realpath(directory)
    return found


def executable_of(candidates):
    """The first that execve(2) would take, as execvpe(3) tries them."""
    for path in candidates:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise Refused("%s: %s" % (path, error.strerror))
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path, found
    raise Refused("no such program")


def leave_out():
    """Leaves what is loaded now out of the end of the interpreter, which would take each module apart, and look at each object
    two or three times. Returns the steps for its end, which are calls of C as no program may see a frame of this file."""
    kept = [name for name in sys.modules if name not in ("__main__", "sys", "builtins")]
    for name in kept:
        API.Py_IncRef(ctypes.py_object(sys.modules[name]))
    gc.freeze()
    return map(id, map(sys.modules.pop, kept, itertools.repeat(None)))


# A command asks.


def check(kind, parts, known, is_shared):
    """Whether this is the program that a command names, as it is on disk now. Returns the answer, and its path."""
    directory, script, *candidates = parts
    path, found = executable_of(candidates)
    own = os.stat("/proc/self/exe")
    is_own = (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)
    if not is_own or os.path.dirname(path) != os.path.dirname(sys.executable):
        raise Refused("it names another interpreter, %s" % path)
    try:
        os.chdir(directory)
    except OSError as error:
        raise Refused("its directory: %s" % error.strerror)
    if kind == "s":
        check_script(script)
    stamps_before, places_before = known
    if not IS_PATH_SAFE:
        check_first_place(os.path.dirname(os.path.realpath(script)) if kind == "s" else os.getcwd(), places_before)
    for place, before in stamps_before.items():
        if stamp(place) != before:
            return "s%s has changed" % place, path
    if is_shared and is_traced():
        return "sanother process traced the interpreter", path
    return "y", path


def is_traced():
    with open("/proc/self/status") as status:
        return any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in status)


def check_first_place(directory, places_before):
    """The program looks for modules here first: it must not find another one of the same name."""
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in names:
        place = places_before.get(name.partition(".")[0], directory)
        if place != directory:
            raise Refused("%s has the name of a module that was imported" % os.path.join(directory, name))


def check_script(script):
    """Directories and archives are programs of another kind, and a pipe can be read only once."""
    try:
        if os.stat(script).st_mode & 0o170000 != 0o100000:
            raise Refused("the script is no file")
        with open(script, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - (1 << 16)))
            if b"PK\5\6" in file.read():
                raise Refused("the script is an archive")
    except OSError as error:
        raise Refused("the script: %s" % error.strerror)


# A command comes.


class Program:
    """What the command runs: `kind` is "c", "m", "s" (a script) or "-"; `operand` is its index in the arguments."""

    def __init__(self, form, path, words):
        kind, operand, skip, flags = form
        self.kind, self.flags, self.path = kind, flags, path
        count = int(words[0])
        self.raw_arguments, self.variables = words[1 : count + 1], words[count + 1 :]
        self.arguments = [os.fsdecode(argument) for argument in self.raw_arguments]
        operand = int(operand)
        # `-cTEXT`: the option and its text are one argument.
        self.text = "".join(self.arguments[operand : operand + 1])[int(skip) :]
        self.argv = [{"c": "-c", "m": "-m"}.get(kind, self.text)] + self.arguments[operand + 1 :]


def receive(link, known, is_shared):
    """Answers questions until the command comes. Returns its form, its path, and its descriptors: three streams, and a file
    with its words."""
    form = path = None
    while True:
        data, ancillary, _, _ = link.recvmsg(LONGEST, 256, _socket.MSG_CMSG_CLOEXEC)
        if not data:
            os._exit(0)
        if data == b"!":
            handed = ancillary[0][2]
            return form, path, [int.from_bytes(handed[at : at + 4], sys.byteorder) for at in range(0, len(handed), 4)]
        kind, operand, skip, flags, *parts = [os.fsdecode(part) for part in data[1:].split(b"\0")]
        form = kind, operand, skip, flags
        try:
            answer, path = check(kind, parts, known, is_shared)
        except Refused as refused:
            answer = "n%s" % refused
        link.send(answer.encode(errors="replace")[:1000])


def place_streams(numbers):
    """Makes the descriptors standard input, output and error. The null device is this sandbox's own."""
    for number, stream in enumerate(numbers):
        found = os.fstat(stream)
        if found.st_mode & 0o170000 == 0o020000 and found.st_rdev == os.makedev(1, 3):
            null = os.open("/dev/null", os.O_RDWR)
            os.dup2(null, number)
            os.close(null)
        else:
            os.dup2(stream, number)
        os.close(stream)


def set_environment(variables):
    """As execve(2) hands it over: of two equal names, getenv(3) finds the first."""
    environment = {}
    for variable in variables:
        name, _, value = variable.partition(b"=")
        environment.setdefault(name, value)
    # What `environ` and `os.environ` hold. Who changes a variable copies this array; nobody frees it.
    array = (ctypes.c_char_p * (len(variables) + 1))(*variables)
    API.Py_IncRef(ctypes.py_object(array))
    ctypes.c_void_p.in_dll(LIBC, "environ").value = ctypes.addressof(array)
    before = os.environ._data
    is_zone_same = before.get(b"TZ") == environment.get(b"TZ")
    before.clear()
    before.update(environment)
    if not is_zone_same:
        time.tzset()


class Map(ctypes.Structure):
    """struct prctl_mm_map of prctl(2)."""

    _fields_ = [(name, ctypes.c_uint64) for name in (
        "start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack", "arg_start", "arg_end",
        "env_start", "env_end", "auxv")] + [("auxv_size", ctypes.c_uint32), ("exe_fd", ctypes.c_uint32)]


def set_command_line(arguments, variables):
    """Shows them in /proc/self/cmdline and environ (PR_SET_MM_MAP, Linux 3.18 with CONFIG_CHECKPOINT_RESTORE)."""

    def joined(parts):
        return b"".join(part + b"\0" for part in parts)

    arguments, variables = joined(arguments), joined(variables)
    place = mmap.mmap(-1, len(arguments) + len(variables) + 1, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    place[: len(arguments) + len(variables)] = arguments + variables
    start = ctypes.addressof(ctypes.c_char.from_buffer(place))
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()

    def field(number):
        return int(fields[number - 3])

    LIBC.sbrk.restype = ctypes.c_void_p
    LIBC.sbrk.argtypes = [ctypes.c_ssize_t]
    layout = Map(
        field(26), field(27), field(45), field(46), field(47), 0, field(28), start, start + len(arguments),
        start + len(arguments), start + len(arguments) + len(variables), 0, 0, 0xFFFFFFFF)
    # The break of now must be in it; between the two calls nothing may ask for memory.
    for _ in range(3):
        layout.brk = LIBC.sbrk(0)
        LIBC.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(layout), ctypes.c_ulong(ctypes.sizeof(layout)), 0)
        if layout.brk == LIBC.sbrk(0):
            break
    # It stays for as long as the process lives.
    API.Py_IncRef(ctypes.py_object(place))


def set_flags(flags):
    """`sys.flags` cannot be made anew. Its items are small numbers, which nothing counts."""
    items = ctypes.addressof(ctypes.c_char.from_address(id(sys.flags))) + tuple.__basicsize__
    for letter, number in (("B", 4), ("q", 10)):
        if letter in flags:
            place = items + number * ctypes.sizeof(ctypes.c_void_p)
            ctypes.c_void_p.from_address(place).value = id(1)
    if "B" in flags:
        sys.dont_write_bytecode = True


def open_streams(is_unbuffered):
    """As `create_stdio` of the interpreter makes them."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, "__%s__" % name)
        buffering = 0 if is_unbuffered and number else -1
        try:
            buffer = io.open(number, "wb" if number else "rb", buffering, closefd=False)
        except OSError:
            stream = None
        else:
            raw = buffer.raw if buffering else buffer
            raw.name = "<%s>" % name
            by_line = not is_unbuffered and (raw.isatty() or number == 2)
            stream = io.TextIOWrapper(
                buffer, old.encoding, old.errors, newline="\n", line_buffering=by_line, write_through=is_unbuffered)
            stream.mode = "w" if number else "r"
        setattr(sys, name, stream)
        setattr(sys, "__%s__" % name, stream)


def set_system(program):
    """What `sys` says about the command."""
    sys.executable = program.path
    sys.argv = program.argv
    if hasattr(sys, "orig_argv"):  # From 3.10 on.
        sys.orig_argv = program.arguments
    if hasattr(sys, "_base_executable") and sys.prefix == sys.base_prefix:
        sys._base_executable = program.path
    if IS_PATH_SAFE:
        pass
    elif program.kind == "s":
        sys.path.insert(0, os.path.dirname(os.path.realpath(program.text)))
    elif program.kind == "m":
        sys.path.insert(0, os.getcwd())
    else:
        sys.path.insert(0, "")
    set_flags(program.flags)
    LIBC.prctl(PR_SET_NAME, os.fsencode(os.path.basename(program.path))[:15], 0, 0, 0)


# The program runs.


class Flags(ctypes.Structure):
    """PyCompilerFlags."""

    _fields_ = [("flags", ctypes.c_int), ("feature_version", ctypes.c_int)]


def show_lines(text):
    """From 3.13 on, tracebacks show the lines of `-c`."""
    cache = getattr(sys.modules.get("linecache"), "cache", {})
    if "<string>" in cache:
        cache["<string>"] = len(text), None, text.splitlines(True), "<string>"


def runner(program):
    """A callable of C and its arguments: it runs the program, and says 0, or -1 after it has printed an exception."""
    flags = ctypes.pointer(Flags(0, sys.version_info[1]))
    if program.kind == "c":
        # From 3.10 on, `-c` takes no account of `# -*- coding`.
        flags.contents.flags = PYCF_IGNORE_COOKIE if sys.version_info >= (3, 10) else 0
        show_lines(program.text + "\n")
        return API.PyRun_SimpleStringFlags, (program.text.encode(), flags)
    if program.kind == "m":
        return run_module, (program.text,)
    run = API.PyRun_SimpleFileExFlags
    run.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
    if program.kind == "-":
        return run, (ctypes.c_void_p.in_dll(LIBC, "stdin"), b"<stdin>", 0, flags)
    LIBC.fopen.restype = ctypes.c_void_p
    name = os.fsencode(absolute(program.text))
    return run, (LIBC.fopen(name, b"rb"), name, 1, flags)


def absolute(script):
    """The name of a script is made absolute, and nothing else is done to it."""
    return os.path.join(os.getcwd(), script)


def run_module(name):
    """As `-m` does. This frame is below those of runpy, and no traceback shows it."""
    import runpy

    try:
        runpy._run_module_as_main(name)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__.tb_next
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            # Then the interpreter ends itself by SIGINT.
            sys.excepthook = lambda *_: None
            API.PyRun_SimpleStringFlags(b"raise KeyboardInterrupt", None)
        return -1
    return 0


def make_main():
    """A new `__main__`: the exception that ends this file keeps the old one until the interpreter is gone."""
    old = sys.modules["__main__"].__dict__
    new = type(sys)("__main__")
    new.__dict__.clear()
    new.__dict__.update((name, value) for name, value in old.items() if name != "os")
    if "__annotations__" in old:
        new.__dict__["__annotations__"] = {}
    sys.modules["__main__"] = new


class Sink:
    """`print` calls its `write`, whatever it prints."""


def hook(program):
    """`sys.excepthook` for the exception that ends this file: it forgets that exception, runs the program, and exits with 0
    unless the program has failed. All of it is C, so that nothing of this file is on the stack."""
    run, arguments = runner(program)
    last = ["last_type", "last_value", "last_traceback"] + ["last_exc"] * (sys.version_info >= (3, 12))
    steps = itertools.chain(
        map(setattr, [sys], ["excepthook"], [sys.__excepthook__]),
        map(delattr, [sys] * len(last), last),
        map(sys.exit, itertools.filterfalse(None, map(run, *([argument] for argument in arguments)))),
    )
    sink = Sink()
    sink.write = partial(set().update, steps)
    return partial(print, file=sink)


def wait():
    """Gets ready, and returns the hook that runs the program."""
    is_shared, modules, candidates = sys.argv[1] == "shared", sys.argv[2].split(",") if sys.argv[2] else [], sys.argv[3:]
    link = take_link()
    at_end = []
    # The first that is registered is the last that is called.
    atexit.register(partial(set().update, itertools.chain.from_iterable(at_end)))
    if not IS_PATH_SAFE:
        del sys.path[0]
    sys.argv = [""]
    # For who lists processes.
    title = os.fsencode(sys.executable), ("(waits for a command)" + "".join(" " + module for module in modules)).encode()
    set_command_line(title, [])
    try:
        if sys.implementation.name != "cpython" or not KNOWN[0] <= sys.version_info[:2] <= KNOWN[1]:
            raise Refused("%s %d.%d is not known to start like this" % (sys.implementation.name, *sys.version_info[:2]))
        path, found = executable_of(candidates)
        if (found.st_dev, found.st_ino) != stamp("/proc/self/exe")[:2]:
            raise Refused("%s starts another program, %s" % (path, os.readlink("/proc/self/exe")))
        import_modules(modules)
    except Refused as refused:
        link.send(("f%s" % refused).encode(errors="replace")[:1000])
        os._exit(0)
    known = stamps(), places()
    at_end.append(leave_out())
    link.send(b"r%d" % resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    form, path, (*streams, file) = receive(link, known, is_shared)
    with open(file, "rb") as words:
        words.seek(0)
        program = Program(form, path, words.read().split(b"\0"))
    link.close()
    place_streams(streams)
    set_environment(program.variables)
    set_command_line(program.raw_arguments, program.variables)
    set_system(program)
    open_streams("u" in program.flags or sys.__stdout__.write_through)
    for finder in sys.path_importer_cache.values():
        # It knows what was in its directory.
        if hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()
    make_main()
    return hook(program)


sys.excepthook = wait()
raise Refused
