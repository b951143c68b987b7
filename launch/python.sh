# Sourced: which Python the launchers take, and how it uses memory.

PYTHONS=(3.13 3.12 3.11) # those that are known to work, as setup.py's classifiers

find_python() { # VERSION ... -> the first of them that this machine has and that can make an environment
    local version candidate
    for version in "$@"; do
        for candidate in "python$version" "$(pyenv root 2>/dev/null)/versions/$version".*/bin/python; do
            # Tried, since a shim of pyenv may be there for a version that is not chosen, and fails.
            if "$candidate" -c "import ensurepip, sys; sys.exit(sys.version_info[:2] != (${version/./, }))" 2>/dev/null; then
                echo "$candidate"
                return
            fi
        done
    done
    return 1
}

# What these environments import is compiled once. Without bytecode each process compiles it again, which takes longer
# than the rest of a short command.
unset PYTHONDONTWRITEBYTECODE

# On CPUs, page faults from large temporaries dominate a training step: let the allocator keep and reuse its pages.
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}
export MALLOC_MMAP_MAX_=${MALLOC_MMAP_MAX_:-0}
export MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-34359738368}
export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-34359738368}
