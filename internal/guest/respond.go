//go:build linux

package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"syscall"
)

// statusOf is the HTTP status of a code.
func statusOf(code string) int {
	switch code {
	case CodeUnauthorized:
		return http.StatusUnauthorized
	case CodeDenied:
		return http.StatusForbidden
	case CodeNotFound:
		return http.StatusNotFound
	case CodeExists, CodeNotEmpty, CodeChanged, CodeAmbiguous, CodeNoMatch, CodeEnded, CodeNoStdin, CodeStopping, CodeRefused:
		return http.StatusConflict
	case CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case CodeTooMany:
		return http.StatusTooManyRequests
	case CodeDiskFull:
		return http.StatusInsufficientStorage
	case CodeInternal:
		return http.StatusInternalServerError
	}
	return http.StatusBadRequest
}

// failureOf gives the failure to answer for any error: its own, or what the system call's number means.
func failureOf(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	message := plain(err)
	code := CodeInternal
	switch {
	case errors.Is(err, syscall.ENOENT):
		code = CodeNotFound
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EROFS):
		code = CodeDenied
	case errors.Is(err, syscall.EISDIR):
		code = CodeIsDirectory
	case errors.Is(err, syscall.ENOTDIR):
		code = CodeNotDirectory
	case errors.Is(err, syscall.ENOTEMPTY):
		code = CodeNotEmpty
	case errors.Is(err, syscall.EEXIST):
		code = CodeExists
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		code = CodeDiskFull
	case errors.Is(err, syscall.EFBIG):
		code = CodeTooLarge
	case errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.EINVAL),
		errors.Is(err, syscall.ENXIO), errors.Is(err, syscall.EBUSY), errors.Is(err, syscall.EXDEV):
		code = CodeInvalid
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EAGAIN):
		code = CodeTooMany
	case unfit(err):
		code, message = CodeInvalid, "the kernel does not allow this with such a path: "+message
	}
	return &failure{code, message}
}

// unfit reports whether a path leads to something that is no file to be read or written, as below /proc and /sys.
func unfit(err error) bool {
	for _, e := range []syscall.Errno{
		syscall.EIO, syscall.EFAULT, syscall.EOPNOTSUPP, syscall.ENOSYS, syscall.ENODEV, syscall.ESPIPE, syscall.ETXTBSY, syscall.ESRCH, syscall.ENOTTY,
		syscall.EBADF, syscall.EILSEQ, syscall.EMLINK,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// plain is the message of an error without the names of system calls.
func plain(err error) string {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Sprintf("%s: %s", clip(p.Path, 512), p.Err)
	}
	return err.Error()
}

// answer writes a value, or the failure where err is not nil.
func answer(w http.ResponseWriter, v any, err error) {
	status := http.StatusOK
	if err != nil {
		f := failureOf(err)
		v, status = Error{Code: f.code, Message: f.message}, statusOf(f.code)
	}
	body, err := json.Marshal(v)
	if err != nil {
		body, status = []byte(`{"code":"internal","message":"the answer could not be written"}`), http.StatusInternalServerError
	}
	h := w.Header()
	h["Content-Type"] = contentJSON
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

var contentJSON = []string{"application/json"}

// decode reads a request's body of at most limit bytes into v.
func decode(w http.ResponseWriter, r *http.Request, limit int64, v any) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return fail(CodeTooLarge, "the request is larger than %d bytes", limit)
		}
		return fail(CodeInvalid, "the request could not be read")
	}
	if len(body) == 0 {
		return nil
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fail(CodeInvalid, "the request is not the JSON that is expected here")
	}
	return nil
}
