// Reads PromQL expressions, one a line, and prints those that Prometheus' own parser refuses, with its reason.
package main

import (
	"bufio"
	"fmt"
	"os"

	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if _, err := parser.ParseExpr(lines.Text()); err != nil {
			fmt.Printf("%s: %v\n", lines.Text(), err)
		}
	}
}
