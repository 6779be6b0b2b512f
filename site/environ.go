package site

import (
	"os"
	"strconv"
	"strings"
)

// Environ is the environment that a process was started with, as lines NAME=value; nil where it may not be read.
func Environ(pid int) []string {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return nil
	}
	return strings.Split(string(content), "\x00")
}
