//go:build unix

package tarball

import "syscall"

// noFollow keeps a file that became a symlink from being followed, and a pipe from being waited for.
const noFollow = syscall.O_NOFOLLOW | syscall.O_NONBLOCK
