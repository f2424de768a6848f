"""A filter of system calls for the process that runs generated code: it can compute and read, and nothing else.

Linux's seccomp with an allow list, by the number of the call and, for opening files, by its flags; all else fails with EPERM. So no other
process, no thread, no network, no file written, whatever the code tries. Standard library only: the child imports it by path.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

# numbers from the kernel's tables: x86-64, ARM64 (asm-generic); -1: the machine has no such call
_CALLS = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "stat": (4, -1), "fstat": (5, 80), "lstat": (6, -1),
    "poll": (7, -1), "lseek": (8, 62), "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "ioctl": (16, 29),
    "pread64": (17, 67), "access": (21, -1), "select": (23, -1), "sched_yield": (24, 124), "mremap": (25, 216),
    "madvise": (28, 233), "dup": (32, 23), "nanosleep": (35, 101), "getpid": (39, 172), "exit": (60, 93),
    "uname": (63, 160), "fcntl": (72, 25), "getcwd": (79, 17), "readlink": (89, -1), "gettimeofday": (96, 169),
    "getrusage": (98, 165), "sysinfo": (99, 179), "times": (100, 153), "getuid": (102, 174), "getgid": (104, 176),
    "geteuid": (107, 175), "getegid": (108, 177), "sigaltstack": (131, 132), "gettid": (186, 178), "time": (201, -1),
    "futex": (202, 98), "sched_getaffinity": (204, 123), "getdents64": (217, 61), "restart_syscall": (219, 128),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "exit_group": (231, 94),
    "newfstatat": (262, 79), "readlinkat": (267, 78), "faccessat": (269, 48), "pselect6": (270, 72), "ppoll": (271, 73),
    "set_robust_list": (273, 99), "getrandom": (318, 278), "statx": (332, 291), "rseq": (334, 293),
    "faccessat2": (439, 439),
}  # fmt: skip
_OPEN = {"open": (2, -1, 1), "openat": (257, 56, 2)}  # the third: which argument holds the flags
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH
_CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_X32 = 0x40000000  # calls of the x32 interface have this bit, and numbers of their own

_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06  # classic BPF
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000  # 1: EPERM
_NR_AT, _ARCH_AT, _ARGUMENTS_AT = (
    0,
    4,
    16,
)  # offsets in struct seccomp_data; an argument has 8 bytes, the low half first
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2


def supported() -> str:
    """Return why the filter cannot be used here, empty where it can."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return f"{platform.system()} on {platform.machine()}, expected Linux on {' or '.join(_MACHINES)}"
    try:
        with open("/proc/sys/kernel/seccomp/actions_avail", encoding="ascii") as file:  # noqa: PTH123 (the child is kept small)
            return "" if "errno" in file.read().split() else "the kernel's seccomp knows no errno"
    except OSError:
        return "the kernel has no seccomp filters"


def program() -> bytes:
    """Return the filter in classic BPF, 8 bytes an instruction."""
    column, arch = _MACHINES[platform.machine()]
    lines = [(_LOAD, 0, 0, _ARCH_AT), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NR_AT)]
    lines += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _REFUSE)]
    for numbers in _CALLS.values():
        if numbers[column] >= 0:
            lines += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _ALLOW)]
    for *opening, argument in _OPEN.values():
        if opening[column] >= 0:
            lines += [(_EQUAL, 0, 4, opening[column]), (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument)]
            lines += [(_ANY_BIT, 1, 0, _CHANGING), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    lines.append((_RETURN, 0, 0, _REFUSE))
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def apply() -> None:
    """Put this process under the filter, for good.

    Raises:
        OSError: the kernel does not take it.
    """
    code = program()
    kept = ctypes.create_string_buffer(code, len(code))
    library = ctypes.CDLL(None, use_errno=True)
    fprog = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(kept))
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _MODE_FILTER, fprog, 0, 0)):
        if library.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
