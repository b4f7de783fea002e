# make run     build, prepare the base image, serve
# make test    build, prepare the base image for the tests, run every test
# make check   what must hold before a commit: form, vet, staticcheck, layout, generated files, races

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-print-directory

# gVisor needs a build without cgo. Every call of go has the same flags, so that gVisor, which takes minutes, is compiled once.
export CGO_ENABLED := 0
export GOFLAGS     := -trimpath

GO       := go
DATA     ?= /var/lib/berth
FUZZTIME ?= 10s
ARGS     ?=

GOFUMPT     := mvdan.cc/gofumpt@v0.12.0
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# What a sandbox's checkpoint can be restored by: raised when our part of the runtime changes what a checkpoint holds.
RUNTIME_REVISION := 1
GVISOR_VERSION   = $(shell $(GO) list -m -f '{{.Version}}' gvisor.dev/gvisor)
LDFLAGS         := -s -w
RUNTIME_LDFLAGS  = $(LDFLAGS) -X gvisor.dev/gvisor/runsc/version.version=berth-$(RUNTIME_REVISION)-$(GVISOR_VERSION)

# The image and the sandboxes need root; building does not, and keeps its caches the user's own.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

# What the tests are told, and make run is not. They start these programs and this image, made once, instead of their own.
BERTH_BASE_DIR ?= $(CURDIR)/.build/base
test race bench fuzz: export BERTH_BIN          := $(CURDIR)/bin/berth
test race bench fuzz: export BERTH_RUNTIME_BIN  := $(CURDIR)/bin/berth-runtime
test race bench fuzz: export BERTH_GUEST_BIN    := $(CURDIR)/bin/berth-guest
test race bench fuzz: export BERTH_PREVIOUS_DIR := $(CURDIR)/.build/previous
test race bench fuzz: export BERTH_BASE_DIR     := $(BERTH_BASE_DIR)
TEST_ENV := BERTH_BIN,BERTH_RUNTIME_BIN,BERTH_GUEST_BIN,BERTH_BASE_DIR,BERTH_PREVIOUS_DIR,BERTH_TEST_ROOTFS,CI,PATH
AS_ROOT  := $(if $(SUDO),-exec "sudo --preserve-env=$(TEST_ENV)")

.PHONY: build programs deb run test base clients previous check fmt vet staticcheck generated race bench fuzz generate clean

build: programs
	$(GO) run ./internal/bundle/pack -o internal/bundle/assets bin/berth-runtime bin/berth-guest
	$(GO) build -tags bundle -ldflags '$(LDFLAGS)' -o bin/berth ./cmd/berth

programs:
	$(GO) build -ldflags '$(RUNTIME_LDFLAGS)' -o bin/berth-runtime ./cmd/berth-runtime
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/berth-guest ./cmd/berth-guest

# A Debian package, in .build.
deb: build
	scripts/deb .build

run: build
	$(SUDO) bin/berth prepare --data $(DATA)
	$(SUDO) bin/berth serve --data $(DATA) $(ARGS)

# The path of the image's tree is the last line of what prepare prints.
base:
	@mkdir -p .build
	@$(GO) build -o .build/prepare ./internal/image/bootstrap/prepare
	@$(SUDO) .build/prepare -dir $(BERTH_BASE_DIR) > .build/rootfs

# npm ci refuses a lock file that lacks an optional package of a platform that the registry does not have; install keeps to the lock as well.
clients:
	@if command -v npm > /dev/null; then cd test/clients && npm install --no-save --no-audit --no-fund --loglevel=error; \
	else echo 'npm is not installed: the tests with other people'\''s MCP clients cannot run'; fi

# The programs of the release before, with which a test makes what these must still wake.
previous:
	@scripts/previous .build/previous '$(RUNTIME_LDFLAGS)'

test: build base clients previous
	@# The whole system comes first and alone: its tests starve real sandboxes of time on purpose. Those that run side by side wait more than they work.
	@export BERTH_TEST_ROOTFS=$$(cat .build/rootfs); failed=0; \
	$(GO) test $(AS_ROOT) -timeout 40m -parallel 4 $(ARGS) ./internal/xtest || failed=1; \
	$(GO) test $(AS_ROOT) -timeout 40m $(ARGS) $$($(GO) list ./... | grep -v /internal/xtest) || failed=1; \
	exit $$failed
	$(GO) test -tags bundle ./internal/bundle

check: fmt vet staticcheck generated race

fmt:
	@files=$$($(GO) run $(GOFUMPT) -l .); if [ -n "$$files" ]; then echo "not formatted by gofumpt:"; echo "$$files"; exit 1; fi

vet:
	$(GO) vet ./...

staticcheck:
	$(GO) run $(STATICCHECK) ./...

generated:
	scripts/check-generated

# The race detector needs cgo, and a sandbox cannot be a cgo program: what links gVisor is left out.
race: build base
	packages=$$(scripts/race-packages); CGO_ENABLED=1 BERTH_TEST_ROOTFS=$$(cat .build/rootfs) $(GO) test -race $(AS_ROOT) -timeout 60m $(ARGS) $$packages

# gVisor's own program is the peer.
bench: build base
	$(GO) build -ldflags '$(LDFLAGS)' -o .build/runsc gvisor.dev/gvisor/runsc
	$(GO) build -o .build/bench ./bench
	$(SUDO) .build/bench -berth bin/berth -runsc .build/runsc -runtime bin/berth-runtime -guest bin/berth-guest -base $(BERTH_BASE_DIR) -o .build/bench.md $(ARGS)

fuzz:
	FUZZTIME=$(FUZZTIME) scripts/fuzz

generate:
	$(GO) generate ./...

clean:
	rm -rf bin internal/bundle/assets
	$(SUDO) rm -rf --one-file-system .build
