//go:build !amd64

package main

import "errors"

func inject(int, string, string) error { return errors.New("this attack is written for amd64") }
