package main

import (
	"fmt"
	"strings"

	"github.com/berthrun/berth/internal/cli"
	"github.com/berthrun/berth/internal/config"
)

// configPage is the manual's page of the configuration file, in the language of man.
func configPage() string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH BERTH.YAML 5 \"\" \"%s\" \"Berth\"\n.SH NAME\nberth.yaml \\- the configuration of a Berth server\n.SH DESCRIPTION\n", cli.Roff("Berth "+version))
	b.WriteString(cli.Roff("A server reads "+config.DefaultFile+", or the file that --config or BERTH_CONFIG names. Environment variables go over the file, and flags over those. "+
		"Keys that do not exist, are written differently or stand twice are errors. berth config prints what is in effect.") + "\n.SH KEYS\n")
	for _, k := range config.Keys() {
		fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", cli.Roff(k.Path), cli.Roff(k.Doc+" It takes "+k.Takes()+"."))
		standard := k.Default
		if standard == "" {
			standard = k.Shown
		}
		if standard != "" {
			b.WriteString(cli.Roff("Default: "+standard+".") + "\n")
		}
		b.WriteString(cli.Roff("Variable "+k.Env+", flag --"+k.Flag+".") + "\n")
	}
	b.WriteString(".SH SEE ALSO\nberth(1), berth\\-serve(1), berth\\-config(1), berth\\-doctor(1)\n")
	return b.String()
}
