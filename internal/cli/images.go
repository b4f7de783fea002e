package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

// importCommand sends an archive of an image.
func (a *app) importCommand() *cobra.Command {
	var in api.ImportImageIn
	cmd := &cobra.Command{
		Use: "import [flags] FILE", DisableFlagsInUseLine: true, Short: "Import an image from an archive",
		Long:    "Imports an image from an OCI layout as a tar archive, or from what docker save writes. - is standard input.",
		Example: "  docker save app:1 | berth images import -\n  berth images import app.tar --image app:1",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("%s needs one FILE; usage: %s", cmd.CommandPath(), cmd.UseLine())
			}
			ctx, cancel := a.context(cmd)
			defer cancel()
			return a.importImage(ctx, in, args[0])
		},
	}
	cmd.Flags().StringVar(&in.Image, "image", "", "what it is called here, as name:tag (default: as in the archive)")
	cmd.Flags().StringVar(&in.Select, "select", "", "which image of an archive of several: its name or digest there")
	return cmd
}

func (a *app) importImage(ctx context.Context, in api.ImportImageIn, file string) error {
	src, size := io.NopCloser(a.stdin), int64(-1)
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		src = f
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			size = info.Size()
		}
	}
	defer src.Close()
	conn, err := a.connect()
	if err != nil {
		return err
	}
	bar := newProgress(a.stderr)
	bar.begin(file, max(size, 0), 0)
	img, err := conn.ImportImage(ctx, in, src, size, bar.at)
	bar.close()
	if err != nil {
		return err
	}
	if a.output == "json" {
		return writeJSON(a.stdout, img)
	}
	_, err = fmt.Fprintf(a.stdout, "%s  %s:%s  %s\n", img.ID, plain(img.Name), plain(strings.Join(img.Tags, ",")), img.Digest)
	return err
}

// exportCommand writes an archive of an image.
func (a *app) exportCommand() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use: "export [flags] IMAGE", DisableFlagsInUseLine: true, Short: "Export an image as an archive",
		Long:    "Writes an image as a tar archive that is an OCI layout and that docker load takes. IMAGE is its id, or a name with a tag that is here.",
		Example: "  berth images export debian:12 -o debian.tar",
		Args:    cobra.ArbitraryArgs, ValidArgsFunction: a.completeFirst(namesOfImages),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("%s needs one IMAGE; usage: %s", cmd.CommandPath(), cmd.UseLine())
			}
			ctx, cancel := a.context(cmd)
			defer cancel()
			return a.exportImage(ctx, args[0], to)
		},
	}
	// -o is the form of every command's output; here nothing but the archive can be meant.
	cmd.Flags().StringVarP(&to, "output", "o", "", "the file to write; - is standard output")
	cmd.PersistentPreRunE = func(*cobra.Command, []string) error { return nil }
	return cmd
}

func (a *app) exportImage(ctx context.Context, image, to string) error {
	if to == "" {
		return usagef("give the file to write with -o; - is standard output")
	}
	conn, err := a.connect()
	if err != nil {
		return err
	}
	imageID, err := findImage(ctx, conn, image)
	if err != nil {
		return err
	}
	in := api.ExportImageIn{ImageIn: api.ImageIn{ImageID: imageID}}
	if to == "-" {
		_, err := conn.ExportImage(ctx, in, a.stdout)
		return err
	}
	// Whoever finds the file finds it whole.
	f, err := os.Create(to + ".part") //nolint:gosec // the caller's own choice
	if err != nil {
		return err
	}
	n, err := conn.ExportImage(ctx, in, f)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(to+".part", to)
	}
	if err != nil {
		return errors.Join(err, os.Remove(to+".part"))
	}
	_, err = fmt.Fprintf(a.stdout, "%s  %d MiB\n", to, n>>20)
	return err
}

// findImage gives the id of an image by its id, or by a name and tag as images.list has them.
func findImage(ctx context.Context, conn *client.Client, image string) (string, error) {
	if strings.HasPrefix(image, "img_") {
		return image, nil
	}
	name, tag := image, "latest"
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		name, tag = image[:i], image[i+1:]
	}
	in := api.ListImagesIn{Name: name}
	for {
		out, err := client.Call(ctx, conn, api.ListImages, in)
		if err != nil {
			return "", err
		}
		for _, img := range out.Items {
			for _, t := range img.Tags {
				if t == tag && img.State == api.ImageReady {
					return img.ID, nil
				}
			}
		}
		if out.NextCursor == nil {
			return "", &client.Error{Code: "NOT_FOUND", Message: "there is no image " + image + " here", Suggestion: "berth images list shows which there are."}
		}
		in.Cursor = *out.NextCursor
	}
}
