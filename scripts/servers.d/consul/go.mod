module tenure-test-consul

go 1.26.0

require (
	github.com/hashicorp/consul v1.16.3
	github.com/hashicorp/consul/envoyextensions v0.5.2
)

replace (
	github.com/hashicorp/consul/api => github.com/hashicorp/consul/api v1.25.1
	github.com/hashicorp/consul/sdk => github.com/hashicorp/consul/sdk v0.14.1
	golang.org/x/exp => golang.org/x/exp v0.0.0-20230321023759-10a507213a29
)
