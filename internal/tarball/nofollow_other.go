//go:build !unix

package tarball

const noFollow = 0
