module elasticdl.test/pause

go 1.26.0
