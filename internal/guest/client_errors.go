package guest

import (
	"encoding/json"
	"strings"
	"unicode"

	"github.com/berthrun/berth/internal/errs"
)

// meaning is what one of the guest's codes becomes.
type meaning struct {
	code       errs.Code
	reason     string
	suggestion string
}

// meanings translates the guest's codes. CodeUnauthorized and CodeInternal are not the caller's doing and are not in it.
var meanings = map[string]meaning{
	CodeInvalid:      {errs.InvalidInput, "", "Correct the arguments and call again."},
	CodeNotFound:     {errs.NotFound, "", "List the directory or the processes to see what is there."},
	CodeExists:       {errs.AlreadyExists, "", "Choose another path, or pass overwrite where the operation has it."},
	CodeNotDirectory: {errs.InvalidInput, "not_directory", "A part of the path is a file; give a path below directories only."},
	CodeIsDirectory:  {errs.InvalidInput, "is_directory", "The path is a directory; list it, or give the path of a file."},
	CodeNotEmpty:     {errs.InvalidState, "not_empty", "Pass recursive to remove a directory with all that is in it."},
	CodeDenied:       {errs.Forbidden, "file_permission", "The sandbox's user may not do this; pass user root, or work below /workspace."},
	CodeTooLarge:     {errs.InvalidInput, "too_large", "Send or ask for less at once."},
	CodeChanged:      {errs.InvalidState, "changed", "Read the file again and repeat the change on what it holds now."},
	CodeAmbiguous:    {errs.InvalidState, "ambiguous", "Give a longer piece of text that occurs once, or pass expect with the number of occurrences."},
	CodeNoMatch:      {errs.InvalidState, "no_match", "Read the file and copy the text exactly, with its spaces and line ends."},
	CodeDiskFull:     {errs.LimitExceeded, "disk_full", "Remove files in the sandbox, or give it a larger disk."},
	CodeEnded:        {errs.InvalidState, "process_ended", "The process no longer takes input or signals; read its output."},
	CodeNoStdin:      {errs.InvalidState, "no_stdin", "Start the process with an open standard input to write to it."},
	CodeTooMany:      {errs.LimitExceeded, "processes", "End some of the sandbox's processes first."},
	CodeCannotRun:    {errs.InvalidInput, "cannot_run", "Check that the program, the user and the directory exist in the sandbox."},
	CodeRefused:      {errs.InvalidState, "connection_refused", "Start a program in the sandbox that listens on the port, then connect again."},
	CodeStopping:     {errs.Busy, "stopping", "The sandbox is being stopped; try again once it is running."},
}

// answeredError is the error for an answer with a status other than 200.
func answeredError(status int, body []byte) error {
	var e Error
	if err := json.Unmarshal(body, &e); err != nil || e.Code == "" {
		return protocolError("it answered status %d without saying why", status)
	}
	message := tame(e.Message)
	switch e.Code {
	case CodeUnauthorized:
		return errs.E(errs.Unavailable, "the program inside the sandbox does not accept the host's token").Because("guest_token").
			Suggest("Stop and start the sandbox.")
	case CodeInternal:
		return errs.E(errs.Upstream, "inside the sandbox: %s", message).Because("guest_failed").Suggest("Try again; if it fails again, restart the sandbox.")
	}
	m, ok := meanings[e.Code]
	if !ok {
		return protocolError("it answered with the unknown code %q", clip(e.Code, 32))
	}
	out := errs.E(m.code, "%s", message).Suggest("%s", m.suggestion)
	if m.reason != "" {
		out = out.Because(m.reason)
	}
	return out
}

// tame makes a guest's message fit to be shown: one line of bounded length.
func tame(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return ' '
		}
		return r
	}, clip(s, maxGuestError))
	if s = strings.TrimSpace(s); s == "" {
		return "no reason was given"
	}
	return s
}
