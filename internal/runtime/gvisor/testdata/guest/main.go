// Command guest is pid 1 of the sandboxes that the driver's tests make: a part of the guest's protocol and calls that end or burden a sandbox.
package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "hog" {
		hog()
	}
	if len(os.Args) == 3 {
		if err := program(os.Args[1], os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	token := os.Getenv("BERTH_GUEST_TOKEN")
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() {
		<-term
		_ = os.WriteFile("/terminated", []byte("yes"), 0o644)
		os.Exit(0)
	}()
	boot := strconv.FormatInt(time.Now().UnixNano(), 10)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(map[string]any{"protocol": 1, "minProtocol": 1, "build": "test", "features": []string{"files"}, "bootId": boot})
	})
	mux.HandleFunc("POST /files/write", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Path string
			Data []byte
		}
		err := json.NewDecoder(r.Body).Decode(&in)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(in.Path), 0o755)
		}
		if err == nil {
			err = os.WriteFile(in.Path, in.Data, 0o644)
		}
		reply(w, map[string]any{"made": true}, err)
	})
	mux.HandleFunc("POST /files/read", func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Path string }
		err := json.NewDecoder(r.Body).Decode(&in)
		var b []byte
		if err == nil {
			b, err = os.ReadFile(in.Path)
		}
		reply(w, map[string]any{"data": b, "eof": true, "next": len(b)}, err)
	})
	var mu sync.Mutex
	mux.HandleFunc("POST /configure", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Token   string
			Entropy []byte
		}
		err := json.NewDecoder(r.Body).Decode(&in)
		if err == nil && len(in.Entropy) > 0 {
			err = os.WriteFile("/dev/urandom", in.Entropy, 0)
		}
		mu.Lock()
		defer mu.Unlock()
		if in.Token != "" {
			token = in.Token
		}
		reply(w, map[string]any{}, err)
	})
	for path, start := range map[string]func(*exec.Cmd) error{"/processes": (*exec.Cmd).Start, "/exec": (*exec.Cmd).Run} {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			var in struct {
				Argv []string
				Cwd  string
			}
			err := json.NewDecoder(r.Body).Decode(&in)
			if err == nil {
				cmd := exec.Command(in.Argv[0], in.Argv[1:]...)
				cmd.Dir, cmd.Stderr = in.Cwd, os.Stderr
				err = start(cmd)
			}
			reply(w, map[string]any{}, err)
		})
	}
	mux.HandleFunc("POST /test/exit", func(w http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.URL.Query().Get("code"))
		os.Exit(code)
	})
	// Takes memory until something ends it.
	mux.HandleFunc("POST /test/hog", func(w http.ResponseWriter, r *http.Request) {
		hog()
	})
	// A child takes it instead; the answer says how the child ended.
	mux.HandleFunc("POST /test/childhog", func(w http.ResponseWriter, r *http.Request) {
		reply(w, map[string]any{"ended": fmt.Sprint(exec.Command(os.Args[0], "hog").Run())}, nil)
	})
	mux.HandleFunc("POST /test/dial", func(w http.ResponseWriter, r *http.Request) {
		c, err := net.DialTimeout("tcp", r.URL.Query().Get("to"), 1500*time.Millisecond)
		if err == nil {
			c.Close()
		}
		reply(w, map[string]any{"ok": true}, err)
	})
	mux.HandleFunc("POST /test/symlink", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		reply(w, map[string]any{}, errorsOf(os.RemoveAll(q.Get("at")), os.Symlink(q.Get("to"), q.Get("at"))))
	})
	mux.HandleFunc("GET /test/facts", func(w http.ResponseWriter, r *http.Request) {
		host, _ := os.Hostname()
		exe, _ := os.ReadFile("/proc/meminfo")
		total := ""
		for line := range strings.Lines(string(exe)) {
			if strings.HasPrefix(line, "MemTotal:") {
				total = strings.Fields(line)[1]
			}
		}
		stat, _ := os.ReadFile("/proc/cpuinfo")
		var addrs []string
		as, _ := net.InterfaceAddrs()
		for _, a := range as {
			addrs = append(addrs, a.String())
		}
		mounts, _ := os.ReadFile("/proc/self/mountinfo")
		reply(w, map[string]any{
			"pid": os.Getpid(), "hostname": host, "memTotalKiB": total, "cpus": strings.Count(string(stat), "processor\t"), "addresses": addrs, "mounts": string(mounts),
		}, nil)
	})
	mux.HandleFunc("POST /test/echo", func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	fmt.Fprintln(os.Stderr, http.ListenAndServe(os.Getenv("BERTH_GUEST_ADDR"), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		ok := r.Header.Get("Berth-Token") == token
		mu.Unlock()
		if !ok {
			http.Error(w, `{"code":"unauthorized","message":"token"}`, http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	})))
}

// program is what processes of the tests do: "count F" appends numbers to F for ever, "random F" writes what the kernel gives at random to it, "pair F" appends
// numbers to F.a and F.b, "some F" writes 32 MiB to F, and "fill F" 1,280 MiB, or what fits.
func program(what, file string) error {
	if what == "random" {
		b := make([]byte, 16)
		_, _ = rand.Read(b)
		return os.WriteFile(file, []byte(hex.EncodeToString(b)), 0o644)
	}
	switch what {
	case "hold":
		return hold(file)
	case "pair":
		return pair(file)
	case "some":
		return os.WriteFile(file, bytes.Repeat([]byte("some"), 8<<20), 0o644)
	case "fill":
		return os.WriteFile("said", []byte(fill(file)), 0o644)
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	for i := 1; err == nil; i++ {
		_, err = fmt.Fprintln(f, i)
		time.Sleep(5 * time.Millisecond)
	}
	return err
}

func pair(file string) error {
	a, err := os.OpenFile(file+".a", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	b, err := os.OpenFile(file+".b", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	for i := 1; err == nil; i++ {
		_, aerr := fmt.Fprintln(a, i)
		_, berr := fmt.Fprintln(b, i)
		err = errorsOf(aerr, berr)
		time.Sleep(time.Millisecond)
	}
	return err
}

// fill says how much it wrote, or why it could not.
func fill(file string) string {
	f, err := os.Create(file)
	block := make([]byte, 1<<20)
	_, _ = rand.Read(block)
	for i := 0; i < 1280 && err == nil; i++ {
		_, err = f.Write(block)
		if err == nil && i%64 == 63 {
			err = f.Sync()
		}
	}
	if err != nil {
		return err.Error()
	}
	return "1280 MiB"
}

// hold takes connections, reads them to their ends and closes none until the file is there.
func hold(file string) error {
	l, err := net.Listen("tcp", ":8000")
	if err != nil {
		return err
	}
	var held []net.Conn
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			held = append(held, c)
			go io.Copy(io.Discard, c)
		}
	}()
	for {
		if _, err := os.Stat(file); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func hog() {
	var keep [][]byte
	for {
		keep = append(keep, bytes.Repeat([]byte{1}, 16<<20))
	}
}

func errorsOf(errs ...error) error {
	for _, e := range errs {
		if e != nil {
			return e
		}
	}
	return nil
}

func reply(w http.ResponseWriter, v any, err error) {
	if err != nil {
		w.WriteHeader(http.StatusUnprocessableEntity)
		v = map[string]string{"code": "test", "message": err.Error()}
	}
	json.NewEncoder(w).Encode(v)
}
