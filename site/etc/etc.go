// SPDX-License-Identifier: Apache-2.0

// Package etc has the files that a site installs. Programs carry the shipped policy.
package etc

import _ "embed"

// Policy is the shipped policy.hcl.
//
//go:embed policy.hcl
var Policy []byte
