package main

import (
	_ "gvisor.dev/gvisor/runsc/cli"
	_ "gvisor.dev/gvisor/runsc/config"
	_ "gvisor.dev/gvisor/runsc/container"
)

func main() {}
