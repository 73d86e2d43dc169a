//go:build tools

// Package tools names the controller that the test cluster runs, so that go.mod and go.sum pin what
// it is built from.
package tools

import _ "sigs.k8s.io/kueue/cmd/kueue"
