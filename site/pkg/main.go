// SPDX-License-Identifier: Apache-2.0

// Command pkg makes parts of the packages, in the top folder of the source:
//
//	pkg docs -out FOLDER                the documents, with links that work on a node
//	pkg man -bin FOLDER -docs FOLDER -date 2026-11-21 -out FOLDER
//	pkg notices PROGRAM...              the licenses of the modules that the programs link
//	pkg install -built FOLDER [-list FILE] [-destdir FOLDER] [-prefix /usr]
//	pkg provenance -version 0.1.0 -commit HASH -compilers TEXT FOLDER
package main

import (
	"flag"
	"fmt"
	"os"
	"syscall"
)

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("cannot make a part: name one"))
	}
	name, args := os.Args[1], os.Args[2:]
	flags := flag.NewFlagSet(name, flag.ExitOnError)
	text := flags.String
	var run func() error
	switch name {
	case "docs":
		out := text("out", "", "folder for the documents")
		run = func() error { return copyDocuments(".", *out) }
	case "man":
		bin, docs := text("bin", "", "folder of the programs"), text("docs", "", "folder of the documents")
		date, out := text("date", "", "date of the pages"), text("out", "", "folder for the pages")
		run = func() error { return makePages(*bin, *docs, *date, *out) }
	case "notices":
		run = func() error { return printNotices(flags.Args(), os.Stdout) }
	case "install":
		d := destination{top: "."}
		flags.StringVar(&d.built, "built", "", "folder with the output of site/pkg/parts.sh")
		flags.StringVar(&d.list, "list", "site/pkg/nfpm.yaml", "list of the files, in the form of nfpm.yaml")
		flags.StringVar(&d.destdir, "destdir", "", "folder that replaces /")
		flags.StringVar(&d.prefix, "prefix", "/usr", "folder that replaces /usr")
		syscall.Umask(0o022) // every user may enter the folders between those of the list
		run = func() error { return d.install(os.Stdout) }
	case "provenance":
		var r release
		flags.StringVar(&r.version, "version", "", "version of the release")
		flags.StringVar(&r.commit, "commit", "", "commit of the release")
		flags.StringVar(&r.compilers, "compilers", "", "first lines of the C compilers' --version")
		run = func() error { return r.print(os.Stdout, flags.Args()) }
	default:
		fail(fmt.Errorf("cannot make %q: there is no such part", name))
	}
	_ = flags.Parse(args) // it exits at an error
	if err := run(); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintf(os.Stderr, "pkg: %v\n", err)
	os.Exit(1)
}
