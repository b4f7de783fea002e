package mcpapi

import (
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/berthrun/berth/api"
)

// cutExec shortens the output of a command. The streams share what the rest of the result leaves: each has half, and what one does not need is the
// other's.
func cutExec(text []byte) ([]byte, error) {
	var out api.ExecOut
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("read result of a command: %w", err)
	}
	stdout, stderr := out.Stdout, out.Stderr
	before := api.OutputCut{}
	if out.OutputCut != nil {
		before = *out.OutputCut
	}
	out.Stdout, out.Stderr, out.Truncated = "", "", true
	out.OutputCut = &api.OutputCut{Stdout: 1 << 60, Stderr: 1 << 60} // as long as a number gets
	room := budget - 1 - chars(encode(out))
	if room < 4*markerRoom {
		return nil, tooLarge()
	}
	first, second := share(cost(stdout), cost(stderr), room)
	out.Stdout, out.OutputCut.Stdout = cutCount(stdout, first)
	out.Stderr, out.OutputCut.Stderr = cutCount(stderr, second)
	out.OutputCut.Stdout += before.Stdout
	out.OutputCut.Stderr += before.Stderr
	return encode(out), nil
}

// share divides room between two needs.
func share(a, b, room int) (int, int) {
	half := room / 2
	switch {
	case a <= half:
		return a, min(b, room-a)
	case b <= half:
		return min(a, room-b), b
	default:
		return half, room - half
	}
}

// maxCommand is how much of a command is shown where it is not what was asked for.
const maxCommand = 1000

// cutOutput gives the beginning of a part of a process's output, and where the rest begins. Nothing is lost: the next read goes on there.
func cutOutput(text []byte) ([]byte, error) {
	var out api.ProcessOutputOut
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("read output of a process: %w", err)
	}
	out.Process.Command = cut(out.Process.Command, maxCommand)
	out.Process.Cwd = cut(out.Process.Cwd, maxCommand)
	data := out.Data
	out.Data = ""
	room := budget - 32 - chars(encode(out)) // nextOffset may get longer, eof changes
	if room < 64 {
		return nil, tooLarge()
	}
	kept, size := beginning(data, out.Encoding, room)
	if len(kept) < len(data) {
		out.NextOffset, out.EOF = out.Offset+int64(size), false
	}
	out.Data = kept
	return encode(out), nil
}

// beginning gives as much of data as takes room characters, and how many bytes of content that is.
func beginning(data, encoding string, room int) (kept string, size int) {
	if encoding != "base64" {
		kept = prefix(data, room)
		return kept, len(kept)
	}
	if len(data) > room {
		data = data[:room/4*4]
	}
	raw, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		return "", 0 // it is the server's own, so this cannot be
	}
	return data, len(raw)
}
