package cli

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

const (
	readPart  = 256 << 10 // the most that files.read gives at once
	writePart = 2 << 20   // the most that files.write takes at once
)

// readFile prints a file's content as it is: all of it from --offset on, or the part that flags name.
func (c *command) readFile(ctx context.Context, conn *client.Client, in map[string]any) error {
	lines := in["startLine"] != nil || in["endLine"] != nil
	whole := in["limit"] == nil && in["cursor"] == nil && !lines && c.output == "table"
	if in["limit"] == nil && c.output == "table" {
		in["limit"] = readPart
	}
	for {
		raw, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode input: %w", err)
		}
		answer, err := conn.Do(ctx, c.info, raw)
		if err != nil {
			return err
		}
		if c.output == "json" {
			return c.print(c.info, answer)
		}
		var out api.ReadFileOut
		if err := json.Unmarshal(answer, &out); err != nil {
			return fmt.Errorf("decode output of %s: %w", c.info.Name, err)
		}
		c.noteWoke(out.Woke)
		if err := writeData(c.stdout, out.Data, out.Encoding); err != nil {
			return err
		}
		if out.Cursor == nil || (lines && allLines(in, out.Lines)) {
			return nil
		}
		if !whole {
			c.note("there is more: --cursor %s", plain(*out.Cursor))
			return nil
		}
		in["cursor"] = *out.Cursor // it knows where to go on, so the offset of the first part has done its work
		delete(in, "offset")
	}
}

// allLines reports whether a read by lines gave every line that was asked for.
func allLines(in map[string]any, got int64) bool {
	var asked struct{ StartLine, EndLine int64 }
	raw, err := json.Marshal(in)
	if err != nil || json.Unmarshal(raw, &asked) != nil || asked.EndLine == 0 {
		return false
	}
	return got >= asked.EndLine-max(asked.StartLine, 1)+1
}

// writeFile sends content from a file or standard input. What is too large for one call is appended in parts, each onto exactly what the one before
// left.
func (c *command) writeFile(cmd *cobra.Command, in map[string]any) error {
	conn, err := c.connect()
	if err != nil {
		return err
	}
	ctx, cancel := c.context(cmd)
	defer cancel()
	if in["data"] != nil && !cmd.Flags().Changed("from") { // by --input
		return c.writeOnce(ctx, conn, in)
	}
	src, err := c.content()
	if err != nil {
		return err
	}
	defer src.Close()
	return c.writeParts(ctx, conn, in, src)
}

func (c *command) content() (io.ReadCloser, error) {
	if c.from == "-" {
		if c.inputs.file == "-" {
			return nil, usagef("standard input cannot be both --input and --from")
		}
		return io.NopCloser(c.stdin), nil
	}
	return os.Open(c.from)
}

func (c *command) writeOnce(ctx context.Context, conn *client.Client, in map[string]any) error {
	raw, err := c.encode(in)
	if err != nil {
		return err
	}
	out, err := conn.Do(ctx, c.info, raw)
	if err != nil {
		return err
	}
	return c.print(c.info, out)
}

func (c *command) writeParts(ctx context.Context, conn *client.Client, in map[string]any, src io.Reader) error {
	key, _ := in["idempotencyKey"].(string)
	var last json.RawMessage
	buf := make([]byte, writePart)
	for n := 1; ; n++ {
		size, err := io.ReadFull(src, buf)
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return fmt.Errorf("read content: %w", err)
		}
		atEnd := err != nil
		if size == 0 && n > 1 {
			break
		}
		in["data"], in["encoding"] = encodeData(buf[:size])
		if n > 1 {
			var before api.WriteFileOut
			if err := json.Unmarshal(last, &before); err != nil {
				return fmt.Errorf("decode output of %s: %w", c.info.Name, err)
			}
			if c.output != "json" {
				c.noteWoke(before.Woke)
			}
			in["append"], in["ifMatch"] = true, before.File.ETag
			if key != "" {
				in["idempotencyKey"] = fmt.Sprintf("%s:%d", key, n)
			}
		}
		raw, err := c.encode(in)
		if err != nil {
			return err
		}
		if last, err = conn.Do(ctx, c.info, raw); err != nil {
			if n > 1 {
				c.note("only the first %d bytes were written", (n-1)*writePart)
			}
			return err
		}
		if atEnd {
			break
		}
	}
	return c.print(c.info, last)
}

// encodeData gives text as text, unless it is no UTF-8 or JSON would make more of it than base64 does.
func encodeData(b []byte) (data, encoding string) {
	if utf8.Valid(b) {
		if quoted, err := json.Marshal(string(b)); err == nil && len(quoted) <= base64.StdEncoding.EncodedLen(len(b))+64 {
			return string(b), "utf-8"
		}
	}
	return base64.StdEncoding.EncodeToString(b), "base64"
}
