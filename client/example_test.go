package client_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/client"
)

// connect makes the client of an example.
func connect() *client.Client {
	c, err := client.New(os.Getenv("BERTH_URL"), os.Getenv("BERTH_API_KEY"))
	if err != nil {
		log.Fatal(err)
	}
	return c
}

// sandbox makes one for an example, and what removes it.
func sandbox(name string) (id string, remove func()) {
	c := connect()
	made, err := client.Call(context.Background(), c, api.CreateSandbox, api.CreateSandboxIn{Name: name})
	if err != nil {
		log.Fatal(err)
	}
	id = made.Sandbox.ID
	return id, func() {
		if _, err := client.Call(context.Background(), c, api.DeleteSandbox, api.SandboxWaitIn{SandboxIn: api.SandboxIn{SandboxID: id}}); err != nil {
			log.Fatal(err)
		}
	}
}

func Example() {
	ctx := context.Background()
	c, err := client.New(os.Getenv("BERTH_URL"), os.Getenv("BERTH_API_KEY"))
	if err != nil {
		log.Fatal(err)
	}
	made, err := client.Call(ctx, c, api.CreateSandbox, api.CreateSandboxIn{Name: "hello"})
	if err != nil {
		log.Fatal(err)
	}
	this := api.SandboxIn{SandboxID: made.Sandbox.ID}

	ran, err := client.Call(ctx, c, api.Exec, api.ExecIn{SandboxIn: this, CommandIn: api.CommandIn{Command: "echo $((6*7)); exit 3"}})
	if err != nil {
		log.Fatal(err) // the call failed; a command that failed is no error
	}
	fmt.Print(ran.Stdout)
	fmt.Println("exit code", *ran.ExitCode)

	if _, err := client.Call(ctx, c, api.DeleteSandbox, api.SandboxWaitIn{SandboxIn: this}); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 42
	// exit code 3
}

func ExampleCall_files() {
	ctx, c := context.Background(), connect()
	id, remove := sandbox("files")
	defer remove()
	this := api.SandboxIn{SandboxID: id}

	written, err := client.Call(ctx, c, api.WriteFile, api.WriteFileIn{FileIn: api.FileIn{SandboxIn: this, Path: "notes/today.txt"}, Data: "one\ntwo\n"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(written.File.Size, "bytes, new:", written.Created)

	// Only if nobody has changed it since.
	_, err = client.Call(ctx, c, api.EditFile, api.EditFileIn{
		FileIn: api.FileIn{SandboxIn: this, Path: "notes/today.txt"}, OldText: "two", NewText: "2", IfMatch: written.File.ETag,
	})
	if err != nil {
		log.Fatal(err)
	}
	read, err := client.Call(ctx, c, api.ReadFile, api.ReadFileIn{FileIn: api.FileIn{SandboxIn: this, Path: "notes/today.txt"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(read.Data)
	// Output:
	// 8 bytes, new: true
	// one
	// 2
}

func ExampleCall_process() {
	ctx, c := context.Background(), connect()
	id, remove := sandbox("process")
	defer remove()

	started, err := client.Call(ctx, c, api.StartProcess, api.StartProcessIn{
		SandboxIn: api.SandboxIn{SandboxID: id},
		CommandIn: api.CommandIn{Command: "for i in 1 2 3; do echo line $i; done"},
	})
	if err != nil {
		log.Fatal(err)
	}
	in := api.ProcessOutputIn{ProcessIn: api.ProcessIn{SandboxID: id, ProcessID: started.Process.ID}, WaitSeconds: 10}
	for {
		part, err := client.Call(ctx, c, api.ProcessOutput, in)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(part.Data)
		if part.EOF {
			break
		}
		in.Offset = part.NextOffset
	}
	// Output:
	// line 1
	// line 2
	// line 3
}

func ExampleClient_Follow() {
	ctx, c := context.Background(), connect()
	id, remove := sandbox("follow")
	defer remove()

	started, err := client.Call(ctx, c, api.StartProcess, api.StartProcessIn{
		SandboxIn: api.SandboxIn{SandboxID: id},
		CommandIn: api.CommandIn{Command: "for i in 1 2 3; do echo line $i; done; exit 4"},
	})
	if err != nil {
		log.Fatal(err)
	}
	in := api.FollowProcessIn{ProcessIn: api.ProcessIn{SandboxID: id, ProcessID: started.Process.ID}}
	end, err := c.Follow(ctx, in, func(o client.Output) error {
		_, err := os.Stdout.Write(o.Data)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("exit code", *end.ExitCode)
	// Output:
	// line 1
	// line 2
	// line 3
	// exit code 4
}

func ExampleClient_Upload() {
	ctx, c := context.Background(), connect()
	id, remove := sandbox("upload")
	defer remove()
	at := api.FileIn{SandboxIn: api.SandboxIn{SandboxID: id}, Path: "big.bin"}

	up, err := c.Upload(ctx, api.UploadFileIn{FileIn: at}, bytes.NewReader(make([]byte, 3_000_000)), client.UploadOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(up.File.Size, "bytes, new:", up.Created)

	down, err := c.Download(ctx, at, 0, "")
	if err != nil {
		log.Fatal(err)
	}
	defer down.Close()
	n, err := io.Copy(io.Discard, down)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(n, "bytes back")
	// Output:
	// 3000000 bytes, new: true
	// 3000000 bytes back
}

func ExampleCall_list() {
	ctx, c := context.Background(), connect()
	for _, name := range []string{"list-a", "list-b", "list-c"} {
		_, remove := sandbox(name)
		defer remove()
	}

	in := api.ListSandboxesIn{State: []string{api.StateRunning}, Order: "oldest", PageIn: op.PageIn{Limit: 2}}
	for {
		page, err := client.Call(ctx, c, api.ListSandboxes, in)
		if err != nil {
			log.Fatal(err)
		}
		for _, s := range page.Items {
			fmt.Println(s.Name)
		}
		if page.NextCursor == nil {
			break
		}
		in.Cursor = *page.NextCursor
	}
	// Output:
	// list-a
	// list-b
	// list-c
}

func ExampleCall_retry() {
	ctx, c := context.Background(), connect()

	// A key of your own outlives the program: write it down before the call.
	in := api.CreateSandboxIn{WriteIn: op.WriteIn{IdempotencyKey: "order-1234"}, Name: "order-1234"}
	first, err := client.Call(ctx, c, api.CreateSandbox, in)
	if err != nil {
		log.Fatal(err)
	}
	again, err := client.Call(ctx, c, api.CreateSandbox, in)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the same:", first.Sandbox.ID == again.Sandbox.ID, "replayed:", again.Replayed)

	in.Name = "something-else"
	_, err = client.Call(ctx, c, api.CreateSandbox, in)
	fmt.Println(client.CodeOf(err))

	if _, err := client.Call(ctx, c, api.DeleteSandbox, api.SandboxWaitIn{SandboxIn: api.SandboxIn{SandboxID: first.Sandbox.ID}}); err != nil {
		log.Fatal(err)
	}
	// Output:
	// the same: true replayed: true
	// IDEMPOTENCY_CONFLICT
}

func ExampleError() {
	ctx, c := context.Background(), connect()

	_, err := client.Call(ctx, c, api.GetSandbox, api.SandboxIn{SandboxID: "sbx_00000000000000000000"})
	switch client.CodeOf(err) {
	case "":
		fmt.Println("it is there")
	case "NOT_FOUND":
		fmt.Println("make a new one:", err)
	default:
		log.Fatal(err)
	}
	// Output: make a new one: there is no sandbox sbx_00000000000000000000 (NOT_FOUND)
}

func ExampleNew() {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64
	c, err := client.New(os.Getenv("BERTH_URL"), os.Getenv("BERTH_API_KEY"),
		client.HTTPClient(&http.Client{Transport: transport, Timeout: 100 * time.Second}),
		client.UserAgent("my-program/1.0"),
		client.Attempts(6),
	)
	if err != nil {
		log.Fatal(err)
	}
	who, err := client.Call(context.Background(), c, api.GetAccount, api.None{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(who.Scopes)
	// Output: [admin]
}
