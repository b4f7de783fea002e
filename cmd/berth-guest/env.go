package main

import (
	"os"
	"strings"
	"unsafe"
)

// hideEnv overwrites a variable in the memory that the kernel shows in /proc/1/environ. Unsetting it only hides it from children.
// The kernel puts the environment right behind the arguments; where what is found there is not exactly it, nothing is touched.
func hideEnv(name string) {
	env := os.Environ()
	if len(os.Args) == 0 || len(env) == 0 {
		return
	}
	last := os.Args[len(os.Args)-1]
	if last == "" {
		return
	}
	at := unsafe.Add(unsafe.Pointer(unsafe.StringData(last)), len(last)+1)
	for _, kv := range env {
		block := unsafe.Slice((*byte)(at), len(kv)+1)
		if string(block[:len(kv)]) != kv || block[len(kv)] != 0 {
			return
		}
		if strings.HasPrefix(kv, name+"=") {
			clear(block[len(name)+1 : len(kv)])
			return
		}
		at = unsafe.Add(at, len(kv)+1)
	}
}
