// SPDX-License-Identifier: Apache-2.0

package site

import "errors"

// Each runs act for 0 to n-1 side by side, and joins the errors.
func Each(n int, act func(int) error) error {
	results := make(chan error, n)
	for i := range n {
		go func() { results <- act(i) }()
	}
	var failed error
	for range n {
		failed = errors.Join(failed, <-results)
	}
	return failed
}
