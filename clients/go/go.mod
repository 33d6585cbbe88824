module github.com/tenure-rs/tenure/clients/go

go 1.22
