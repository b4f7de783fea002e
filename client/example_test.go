package client_test

import (
	"context"
	"fmt"
	"net/http"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

// server answers as a deployment would.
func server() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/sandboxes", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"idempotencyKey":"k","status":"done","ready":true,"sandbox":{"id":"sbx_aaaaaaaaaaaaaaaaaaaa","name":"build"}}`)
	})
	mux.HandleFunc("GET /v1/sandboxes/{id}", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"error":{"code":"NOT_FOUND","message":"there is no such sandbox","suggestion":"List sandboxes.","requestId":"req_1"}}`)
	})
	return mux
}

func ExampleCall() {
	c, err := client.New("http://localhost", "KEY", client.InProcess(server()))
	if err != nil {
		fmt.Println(err)
		return
	}
	out, err := client.Call(context.Background(), c, api.CreateSandbox, api.CreateSandboxIn{Name: "build"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(out.Sandbox.Name, out.Ready)
	// Output: build true
}

func ExampleError() {
	c, err := client.New("http://localhost", "KEY", client.InProcess(server()))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = client.Call(context.Background(), c, api.GetSandbox, api.SandboxIn{SandboxID: "sbx_bbbbbbbbbbbbbbbbbbbb"})
	fmt.Println(client.CodeOf(err), "-", err)
	// Output: NOT_FOUND - there is no such sandbox (NOT_FOUND)
}
