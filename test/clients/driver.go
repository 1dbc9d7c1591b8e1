package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<26)
	for lines.Scan() {
		var document string
		var parts []string

		if json.Unmarshal(lines.Bytes(), &parts) == nil {
			fmt.Println(ProviderKey(parts[0], parts[1], parts[2]))
			continue
		}
		if err := json.Unmarshal(lines.Bytes(), &document); err != nil {
			panic(err)
		}
		digest, err := Fingerprint([]byte(document))
		if err != nil {
			panic(err)
		}
		fmt.Printf("%x\n", digest)
	}
}
