package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// What is written to a volume and to the sandbox's own disk, and how often.
const (
	volumeMiB    = 256
	randomWrites = 200 // of 4 KiB, each with fsync, into a file of randomMiB
	randomMiB    = 64
	volumeRounds = 14
	leastSpeed   = 0.8 // of the own disk's
)

// diskProgram writes or reads one file, and prints the seconds that took. Its arguments are what, the file and a number.
const diskProgram = `
import os, random, sys, time
what, path, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
block = os.urandom(1 << 20)
if what == "write":
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    began = time.perf_counter()
    for _ in range(n):
        os.write(fd, block)
    os.fsync(fd)
elif what == "read":
    fd = os.open(path, os.O_RDONLY)
    began = time.perf_counter()
    while os.read(fd, 1 << 20):
        pass
else:
    fd = os.open(path, os.O_RDWR)
    pages = os.fstat(fd).st_size >> 12
    at = [random.randrange(pages) << 12 for _ in range(n)]
    began = time.perf_counter()
    for a in at:
        os.pwrite(fd, block[:4096], a)
        os.fsync(fd)
print(time.perf_counter() - began)
`

// volumes: a volume beside the sandbox's own disk, from inside.
func (b *bench) volumes(ctx context.Context, rootfs string) error {
	volume := id.New(id.Volume)
	a, end, err := b.driverAlone(ctx, rootfs, func(a *alone) error {
		a.spec.Resources.MemoryMiB = 2048 // the page cache of what it writes is its own
		a.spec.Mounts = []runtime.Mount{{Volume: volume, Path: "/volume"}}
		return a.d.MakeVolume(ctx, volume, 10)
	})
	if err != nil {
		return err
	}
	defer end()
	trees := filepath.Join(a.dir, "disks", "trees")
	places := [2]struct{ inside, outside string }{
		{"/volume/", filepath.Join(trees, "volume."+volume, "upper")},
		{"/root/", filepath.Join(trees, a.spec.ID, "upper", "root")},
	}
	kinds := []struct {
		what, do, file string
		n              int
		cold           bool
		unit           string
	}{
		{fmt.Sprintf("%d MiB written in a row, with one fsync", volumeMiB), "write", "big", volumeMiB, false, "MiB/s"},
		{fmt.Sprintf("%d MiB read in a row, from the page cache", volumeMiB), "read", "big", volumeMiB, false, "MiB/s"},
		{fmt.Sprintf("%d MiB read in a row, from the disk", volumeMiB), "read", "big", volumeMiB, true, "MiB/s"},
		{"4 KiB written anywhere in 64 MiB, each with fsync", "random", "small", randomWrites, false, "writes/s"},
	}
	times := make([][2][]time.Duration, len(kinds))
	for round := range min(b.rounds, volumeRounds) + 1 {
		for i := range places {
			p := places[(i+round)%2] // who is first changes
			if _, err := a.disk(ctx, "write", p.inside+"small", randomMiB); err != nil {
				return err
			}
		}
		for k, kind := range kinds {
			for i := range places {
				way := (i + round) % 2
				p := places[way]
				if kind.cold {
					if err := forgetPages(filepath.Join(p.outside, kind.file)); err != nil {
						return err
					}
				}
				d, err := a.disk(ctx, kind.do, p.inside+kind.file, kind.n)
				if err != nil {
					return err
				}
				if round > 0 {
					times[k][way] = append(times[k][way], d/time.Duration(kind.n))
				}
			}
		}
	}
	for k, kind := range kinds {
		r := row{
			what: "on a volume, " + kind.what, ours: times[k][0], peer: "the same on the sandbox's own disk", theirs: times[k][1], must: fmt.Sprintf("≥ %.1f ×", leastSpeed),
			rate: true, unit: kind.unit,
		}
		r.met = 1/r.ratio() >= leastSpeed
		b.rows = append(b.rows, r)
	}
	return nil
}

// disk runs the program inside, and gives how long what it did took.
func (a *alone) disk(ctx context.Context, what, path string, n int) (time.Duration, error) {
	out, err := a.Exec(ctx, guest.Start{ID: id.New(id.Process), Argv: []string{"python3", "-c", diskProgram, what, path, strconv.Itoa(n)}, User: "root"}, 5*time.Minute)
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(out.Stdout.Head))
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("%s %s: %q, %s", what, path, text, out.Stderr.Tail)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// forgetPages has the kernel read a file from the disk again.
func forgetPages(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
}
